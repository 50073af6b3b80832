//! Several byte strings in one: each behind its length.

/// Appends a length, seven bits a byte, the lowest first, as in the entries themselves.
pub(crate) fn put_length(body: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        body.push(length as u8 | 0x80);
        length >>= 7;
    }
    body.push(length as u8);
}

/// Splits a row into its entries; yields `None` where they cannot be separated.
pub(crate) fn unpack(mut rest: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok((length, entries)) = postcard::take_from_bytes::<u32>(rest) else {
            rest = &[];
            return Some(None);
        };
        let split = entries.split_at_checked(length as usize);
        rest = split.map_or(&[], |(_, others)| others);
        Some(split.map(|(entry, _)| entry))
    })
}
