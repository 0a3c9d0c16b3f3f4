"""Reads sources: finds files, indexes the place of each sample in them, and reads single samples by their places.

    source.path ── forms.find_source ──► Source ──┬── a mixture: its entries, each a source   mixture, metadataset, meta
                                                  └── files: a Shard each                     shard, *_shard, packs
    Shard ── index ──► a row for each sample ── copies.drawn_rows ──► the rows that come, some of them twice
    row ── record ──► Record ── media, part ──► where its media lie                            sample, reader

Another form of files is a class derived from `JsonlShard` or `TarShard`, with a name in `Format`, a case in
`forms._form_of`, which says how its files are found, and its place in `forms.look`, which recognises them.
"""
