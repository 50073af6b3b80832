//! Texts that are copied often.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that is part of the program, or that its copies share. A copy takes no memory.
#[derive(Clone)]
pub struct Words(Text);

#[derive(Clone)]
enum Text {
    /// Behind one reference more, so that it takes no more room than the other.
    Fixed(&'static &'static str),
    Shared(Arc<str>),
}

impl Words {
    /// Creates a text of the program itself.
    pub const fn fixed(text: &'static &'static str) -> Self {
        Self(Text::Fixed(text))
    }
}

impl Deref for Words {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Text::Fixed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl From<&'static str> for Words {
    fn from(text: &'static str) -> Self {
        Arc::<str>::from(text).into()
    }
}

impl From<String> for Words {
    fn from(text: String) -> Self {
        Self(Text::Shared(text.into()))
    }
}

impl From<Arc<str>> for Words {
    fn from(text: Arc<str>) -> Self {
        Self(Text::Shared(text))
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Words {}

impl PartialOrd for Words {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Words {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Words {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::name::read(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_same_wherever_it_comes_from() {
        let (fixed, shared) = (Words::fixed(&"start"), Words::from("start".to_owned()));
        assert_eq!((&fixed, fixed.cmp(&shared)), (&shared, Ordering::Equal));
        assert_eq!(format!("{fixed} {fixed:?}"), format!("{shared} {shared:?}"));
        assert_ne!(fixed, Words::from("stop"));
        assert_eq!(size_of::<Words>(), size_of::<Arc<str>>());
    }
}
