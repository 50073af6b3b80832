//! Planted bugs: see [`abide_core::planted`].

use abide_core::planted::Bug;

/// Returns the names of all bugs, one a line.
pub(crate) fn names() -> String {
    Bug::ALL.iter().map(|bug| bug.name()).collect::<Vec<_>>().join("\n")
}

/// Plants a bug in this process.
pub(crate) fn plant(name: &str) -> Result<(), String> {
    let bug = Bug::named(name).ok_or_else(|| format!("there is no bug {name:?}; --bugs lists them"))?;
    choose(bug)
}

#[cfg(feature = "planted")]
fn choose(bug: Bug) -> Result<(), String> {
    abide_core::planted::choose(bug);
    Ok(())
}

#[cfg(not(feature = "planted"))]
fn choose(bug: Bug) -> Result<(), String> {
    Err(format!("{:?} cannot be planted in this build; `cargo xtask planted` makes one", bug.name()))
}
