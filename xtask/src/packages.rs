//! Programs of the system's packages: found, or installed.

use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::{Result, process};

/// Installs a package of the system if `is_there` does not find what it contains.
pub(crate) fn ensure(package: &str, is_there: impl Fn() -> bool) -> Result<()> {
    if is_there() {
        return Ok(());
    }
    let by_hand = format!("install {package} by hand and try again");
    if !runs("apt-get") {
        return Err(format!("{package} is missing, and there is no apt-get to install it: {by_hand}").into());
    }
    let is_root = geteuid().is_root();
    if !is_root && !runs("sudo") {
        return Err(format!("{package} is missing, and only root may install it: {by_hand}").into());
    }
    eprintln!("{package} is missing and is installed now");
    let install = || process::run(apt(is_root).args(["install", "--yes", package]));
    // A fresh image knows no packages yet. An update costs a minute, so it comes second.
    install()
        .or_else(|_| process::run(apt(is_root).arg("update")).and_then(|()| install()))
        .map_err(|error| format!("{package} is missing and cannot be installed: {error}; {by_hand}"))?;
    if is_there() { Ok(()) } else { Err(format!("apt-get installed no {package}: {by_hand}").into()) }
}

fn apt(is_root: bool) -> Command {
    if is_root {
        return Command::new("apt-get");
    }
    let mut command = Command::new("sudo");
    command.arg("apt-get");
    command
}

/// Whether a program can be started.
pub(crate) fn runs(program: &str) -> bool {
    let status = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
