//! Notifications of the operating system about writes to the log.

use std::time::Duration;

use crate::batch::Shared;
pub(crate) use platform::Watch;

#[cfg(target_os = "linux")]
mod platform {
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

    use super::{Duration, Shared};
    use crate::wal::log_path;

    /// A watch on the file of the log.
    pub(crate) struct Watch {
        events: OwnedFd,
        log: PathBuf,
    }

    impl Watch {
        /// Creates a watch; `None` if there is no log yet, or if no watch is available.
        pub(crate) fn of(shared: &Shared) -> Option<Self> {
            let log = log_path(shared.path.as_deref()?);
            let events = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
            let watch = Self { events, log };
            watch.look_at_log().then_some(watch)
        }

        /// Watches the file that currently has the name of the log. This does not affect a file
        /// that is already watched.
        fn look_at_log(&self) -> bool {
            add_watch(&self.events, &self.log, WatchFlags::MODIFY | WatchFlags::ATTRIB).is_ok()
        }

        /// Waits until the log is written to, at most for `duration`. Returns whether it was.
        pub(crate) fn wait(&self, duration: Duration) -> bool {
            let timeout = Timespec::try_from(duration).ok();
            // An interrupted wait is a short wait.
            let is_quiet = poll(&mut [PollFd::new(&self.events, PollFlags::IN)], timeout.as_ref()) == Ok(0);
            let mut events = [0; 4_096];
            while rustix::io::read(&self.events, &mut events).is_ok_and(|count| count > 0) {}
            if is_quiet {
                // The last connection may have deleted the log, and another file may have its name.
                self.look_at_log();
            }
            !is_quiet
        }

        /// Ends a wait: a new time stamp is an event.
        pub(crate) fn disturb(shared: &Shared) {
            let Some(path) = shared.path.as_deref().map(log_path) else { return };
            let touched = std::fs::OpenOptions::new().append(true).open(path);
            // If this fails, the waiting thread wakes up on its own within a second.
            let _ = touched.and_then(|file| {
                file.set_times(std::fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH))
            });
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use super::{Duration, Shared};

    /// No watch is available here.
    pub(crate) enum Watch {}

    impl Watch {
        pub(crate) fn of(_: &Shared) -> Option<Self> {
            None
        }

        pub(crate) fn wait(&self, _: Duration) -> bool {
            match *self {}
        }

        pub(crate) fn disturb(_: &Shared) {}
    }
}
