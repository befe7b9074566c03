"""Where do log lines and spans stay? In memory behind a log on disk, then in Parquet files with indexes."""
