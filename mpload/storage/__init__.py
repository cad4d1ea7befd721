"""Reading bytes: from local files, shards, databases and remote stores.

```
ranges           ByteRange, Span, LmdbValue, RowValue: requests for bytes
merging          plans a few large reads for many neighbouring ranges; opens nothing
protocols        Storage: the interface of every storage, and optional extensions of it
confined         resolves paths and checks that they stay inside the root
local            LocalStorage: files and shards below a root folder
regular          opens regular files only, and never waits for one
file_errors      what the errors of local files say
lmdb             LmdbStorage: values in LMDB data files
lmdb_scan        reads all values of an LMDB data file in a separate process
parquet          ParquetStorage: values in Parquet files
remote           RemoteStorage: time limits for reading objects at URLs; RemoteObjects reads them
urls             which URLs can be read, and how to print them without secrets
clients          makes the client that reads from a server, or a bucket
remote_file      RemoteFile: an object at a URL, read by position like a file
object_facts     size and version of an object at a URL
retrying         repeats requests that fail, and tells bad objects from outages
notices          what is said while requests to a server are repeated
servers          what a process knows about a server, and when to repeat a request
quick_reads      reads what is as usual through libcurl, without a thread for each request
transfers        makes many requests at once in one thread, through libcurl
waiters          the threads that wait for answers from a network
web              makes requests to http and https URLs, and copes with all that is unusual
proxies          the proxy that the environment names for a URL
server_urls      URLs of servers of mpload, and their token
connections      HTTP connections, through urllib3, on which every wait has a limit
web_failures     what the errors of urllib3 say
buckets          makes requests to buckets, with obstore
bucket_failures  what the errors of obstore say
request_failure  what went wrong with one request
leading_slashes  finds keys that begin with a slash, which obstore does not show
listing          lists the keys of a bucket in several threads
first_seen       what shards were when a process of the job first opened them
roots            paths below one of several roots, for the sources of a mixture
opening          open_storage: makes the storage that an index needs
many             reads the ranges of a whole chunk of samples with one native call
many_ahead       copies the ranges of a whole chunk from what was read ahead
mapped           maps shards of small samples into memory
read_ahead       ReadAhead: threads that read samples in advance when the storage is slow
planned_reads    the samples that are to be read ahead, and the memory that they take
slow_reads       whether reads are slow
fetches          one read for read-ahead, and which samples share it
hedging          makes a read a second time if it is late
latencies        how long requests have taken lately
depths           how far to read ahead
waits            how often a thread has waited
in_flight        reads in progress: each in a thread, or most of them without one
read_threads     threads that run jobs
native           the native module, if it was built
_files           opens files below a folder (C, optional): its Python module
_read_many       reads many ranges of files into one area, or copies them from maps (C)
```

This file imports nothing, so that a worker loads only the modules it uses.
"""
