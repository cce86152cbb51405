"""What no file and no line may give away: secrets always, paths and people on request.

Below the stages: a capture writes its trace through it, an analysis its reports, the command line its messages.
"""
