//! Names that were used a moment ago.
//!
//! Code uses few names, again and again: of its workflows, steps and lanes. A thread keeps the last
//! ones, so that using one more time neither checks nor copies it.

use std::cell::RefCell;

use abide_core::{InvalidName, Name};

/// The number of names that a thread keeps, and the longest one. Names that are made for one use,
/// with an id in them, displace others for a moment.
const NAME_COUNT: usize = 16;
const NAME_BYTES_MAX: usize = 64;

thread_local! {
    static NAMES: RefCell<[Option<Name>; NAME_COUNT]> = const { RefCell::new([const { None }; NAME_COUNT]) };
}

/// Returns `text` as a name, as [`Name::of_field`] does.
pub(crate) fn name(field: &'static str, text: &str) -> Result<Name, InvalidName> {
    let (Some(first), Some(last)) = (text.as_bytes().first(), text.as_bytes().last()) else {
        return Name::of_field(field, text);
    };
    if text.len() > NAME_BYTES_MAX {
        return Name::of_field(field, text);
    }
    let place = (usize::from(*first) * 7 + usize::from(*last) * 3 + text.len()) % NAME_COUNT;
    let recent = NAMES.try_with(|names| {
        let mut names = names.borrow_mut();
        match &names[place] {
            Some(known) if known.as_str() == text => Ok(known.clone()),
            _ => Name::of_field(field, text).inspect(|name| names[place] = Some(name.clone())),
        }
    });
    // A thread that ends has none any longer.
    recent.unwrap_or_else(|_| Name::of_field(field, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_however_often_it_is_asked_for() {
        let texts: Vec<String> = (0..200).map(|nth| format!("{}{nth}", "x".repeat(nth % 70))).collect();
        for text in texts.iter().chain(&texts) {
            assert_eq!(name("name", text).map(|name| name.as_str().to_owned()), Ok(text.clone()));
            assert_eq!(name("name", text).map(|name| name.as_str().to_owned()), Ok(text.clone()));
        }
        for text in ["", "a\nb", &"x".repeat(300)] {
            assert_eq!(name("lane", text), Name::of_field("lane", text));
            assert!(name("lane", text).is_err());
        }
    }
}
