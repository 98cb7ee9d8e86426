"""The store: jobs and their samples below one folder, made of files that are whole or not there.

    incoming/JOB/       batches of a job that runs, or that nobody has finished yet
    waiting/JOB/        those of a short job that is stored, until they are in the lake
    lake/set=S/date=D/  samples as Parquet
    records/D/          one JSON file per finished job: the truth about jobs
    catalog.sqlite      an index of the records, which can be made anew at any time

Nothing depends on locks of a file system: every file is written under another name and renamed, names
say what is inside, and no file is changed once it is there.
"""
