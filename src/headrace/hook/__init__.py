"""Learn the order of a training job's reads inside the job's own process, and report it to the node of its host.

This package runs in the Python of the job, which may have no Headrace: it imports the standard library only, and its
own modules by relative names. `site/sitecustomize.py` loads it as soon as a program imports torch's DataLoader. No
error of it reaches the program.

`loaders.py` watches the loaders, `samplers.py` learns their order, and `shards.py` that of iterable data sets.
`copied_code.py` decides which samplers may be copied, and `stand_ins.py` stands for the data set in a copy.
`sample_files.py` says which file a sample is, and `opened_files.py` learns that from the workers. `reporter.py` sends
all of it, in a thread. `interruptions.py` tells errors of the program from those of the hook.
"""
