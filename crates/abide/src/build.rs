//! The version of the user's program if the user sets none.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use abide_core::{Bounds, Name};

/// Returns a name for the executable file of this process and the bounds that it works under. The
/// bounds count because a higher bound may be all that a blocked execution needs.
///
/// The file's length and modification time identify it. Hashing a hundred megabytes at every start
/// would cost more than one unnecessary try, and a deploy that changes neither of the two is no
/// deploy.
pub(crate) fn of_executable(bounds: &Bounds) -> Name {
    static EXECUTABLE: OnceLock<Option<(u64, u128)>> = OnceLock::new();
    let mut hasher = DefaultHasher::new();
    EXECUTABLE.get_or_init(executable).hash(&mut hasher);
    format!("{bounds:?}").hash(&mut hasher);
    Name::new(format!("{:016x}", hasher.finish())).expect("hexadecimal digits are a name")
}

fn executable() -> Option<(u64, u128)> {
    let file = std::fs::metadata(std::env::current_exe().ok()?).ok()?;
    let changed = file.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some((file.len(), changed.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_executable_is_one_build() {
        let bounds = Bounds::default();
        assert_eq!(of_executable(&bounds), of_executable(&bounds));
        let higher = Bounds { entry_count_max: bounds.entry_count_max + 1, ..bounds.clone() };
        assert_ne!(of_executable(&bounds), of_executable(&higher));
    }
}
