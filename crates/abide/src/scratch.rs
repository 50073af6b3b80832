//! A buffer in which payloads are written, before they are copied to where they stay.
//!
//! A payload is shared and has no room to grow, and the length of a value is known only when it is
//! written. A buffer for each value would double its allocations.

use std::cell::Cell;
use std::convert::Infallible;

use abide_core::Payload;

/// The largest buffer that a thread keeps.
const KEPT_BYTES_MAX: usize = 64 * 1_024;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Returns the payload that `write` writes.
pub(crate) fn payload(write: impl FnOnce(&mut Vec<u8>)) -> Payload {
    let written: Result<Payload, Infallible> = try_payload(|buffer| {
        write(buffer);
        Ok(())
    });
    match written {
        Ok(payload) => payload,
        Err(never) => match never {},
    }
}

/// Does the same for a writer that may fail.
pub(crate) fn try_payload<E>(write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<Payload, E> {
    // Taken, not borrowed: the code of a user's type may write another value meanwhile. A thread
    // that ends has no buffer any longer.
    let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
    buffer.clear();
    write(&mut buffer)?;
    let payload = Payload::from(buffer.as_slice());
    if buffer.capacity() <= KEPT_BYTES_MAX {
        let _ = BUFFER.try_with(|kept| kept.set(buffer));
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_inside_another_does_not_disturb_it() {
        let outer = payload(|buffer| {
            buffer.push(1);
            assert_eq!(payload(|inner| inner.push(2)).as_bytes(), [2]);
            buffer.push(3);
        });
        assert_eq!(outer.as_bytes(), [1, 3]);
        assert_eq!(try_payload(|buffer| Err::<(), _>(buffer.len())), Err(0));
    }

    #[test]
    fn a_large_buffer_is_not_kept() {
        payload(|buffer| buffer.resize(KEPT_BYTES_MAX + 1, 0));
        assert_eq!(BUFFER.take().capacity(), 0);
        payload(|buffer| buffer.push(0));
        assert!(BUFFER.take().capacity() > 0);
    }
}
