//! Being told by the operating system that the log was written to.

use std::time::Duration;

use crate::batch::Shared;
pub(crate) use platform::Watch;

#[cfg(target_os = "linux")]
mod platform {
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

    use super::{Duration, Shared};
    use crate::wal::log_path;

    /// A watch on the file of the log.
    pub(crate) struct Watch(OwnedFd);

    impl Watch {
        /// `None` when there is no log yet, or no watch to be had.
        pub(crate) fn of(shared: &Shared) -> Option<Self> {
            let path = log_path(shared.path.as_deref()?);
            let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
            add_watch(&watch, path, WatchFlags::MODIFY | WatchFlags::ATTRIB).ok()?;
            Some(Self(watch))
        }

        /// Waits until the log was written to, or for so long.
        pub(crate) fn wait(&self, duration: Duration) {
            let timeout = Timespec::try_from(duration).ok();
            // An interrupted wait is a wait that was short.
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref());
            let mut events = [0; 4_096];
            while rustix::io::read(&self.0, &mut events).is_ok_and(|count| count > 0) {}
        }

        /// Ends a wait: a new time stamp is an event.
        pub(crate) fn disturb(shared: &Shared) {
            let Some(path) = shared.path.as_deref().map(log_path) else { return };
            let touched = std::fs::OpenOptions::new().append(true).open(path);
            // Without it the waiting thread looks up by itself within a second.
            let _ = touched.and_then(|file| {
                file.set_times(std::fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH))
            });
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use super::{Duration, Shared};

    /// No watch is to be had here.
    pub(crate) enum Watch {}

    impl Watch {
        pub(crate) fn of(_: &Shared) -> Option<Self> {
            None
        }

        pub(crate) fn wait(&self, _: Duration) {
            match *self {}
        }

        pub(crate) fn disturb(_: &Shared) {}
    }
}
