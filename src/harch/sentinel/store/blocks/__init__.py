"""What was measured before? Compressed blocks on disk, of one tenant, that never change once they are written.

The names that the rest of the store uses. Times are milliseconds; a block holds `start_ms <= t < end_ms`, a query asks
for `start <= t <= end`.

    codec.encode(timestamps, values) -> bytes           samples of one series, bit by bit the same when decoded
    codec.decode(chunk) -> (timestamps, values)         E0613 for bytes that are none of its own
    codec.decode_into(chunk, timestamps, values) -> n   the same without new arrays
    codec.sample_count(chunk) -> n

    merging.merge_selections(selections) -> Selection   by labels; where two hold one time, the later selection wins
    merging.merge_tables(tables) -> table, places       one table, and where the series of each one went

    writer.write_block(folder, selection, start_ms, end_ms) -> BlockMeta | None     durable when it returns;
                                                        samples outside of the range are left out; None: none were left
    block.Block.open(path)                              .meta .select(matchers, start, end, *, limit) .series(...)

    tenant.Blocks.open(folder, policy)                  all blocks of a tenant; safe to use from several threads
        .write(selection, start_ms, end_ms)             durable on return: what the head calls before it forgets
        .add(selection)                                 the same for samples of all times
        .select(matchers, start, end, *, limit)         raw samples where they exist, else downsampled ones
        .series(matchers, start, end)
        .delete(matchers, start, end)                   invisible at once, off the disk with maintenance or purge
        .maintain(now_ms) -> Report                     erasure, downsampling, retention, compaction
        .purge(now_ms) -> PurgeProof                    carries out deletions now, and proves that they are
        .time_range() .end_ms() .metas() .problems() .close()
"""
