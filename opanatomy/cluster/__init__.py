"""The traces of a whole cluster, each reduced on its own to a small summary: on the cores of one machine or by Dask.

source -> summary that was kept, else made by a worker process (`pool`) or a Dask worker (`dask_run`) and kept as
Parquet (`kept`). Which rank comes when does not matter: the report is made from summaries alone.
"""
