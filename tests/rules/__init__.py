"""One rule of the analysis a file, on traces made by hand: phases, classes, idle time, waiting, roofline, advice."""
