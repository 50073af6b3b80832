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

    /// A watch on the file of the log. It reports one write and must then be renewed: a busy log is
    /// written to many times between two looks, and each event costs the writer time, also in
    /// another process.
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
            watch.renew().then_some(watch)
        }

        /// Watches the file that currently has the name of the log: the last connection may have
        /// deleted the log, and another file may have its name. This does not affect a file that is
        /// already watched. Ask for news after it: nobody reports an earlier write.
        pub(crate) fn renew(&self) -> bool {
            let events = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::ONESHOT;
            add_watch(&self.events, &self.log, events).is_ok()
        }

        /// Waits until the log is written to, at most for `duration`. Returns whether it was.
        pub(crate) fn wait(&self, duration: Duration) -> bool {
            let timeout = Timespec::try_from(duration).ok();
            // An interrupted wait is a short wait.
            let is_quiet = poll(&mut [PollFd::new(&self.events, PollFlags::IN)], timeout.as_ref()) == Ok(0);
            let mut events = [0; 4_096];
            while rustix::io::read(&self.events, &mut events).is_ok_and(|count| count > 0) {}
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

        pub(crate) fn renew(&self) -> bool {
            match *self {}
        }

        pub(crate) fn wait(&self, _: Duration) -> bool {
            match *self {}
        }

        pub(crate) fn disturb(_: &Shared) {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use abide_store::conformance::TestClock;

    use super::*;
    use crate::Options;
    use crate::wal::log_path;

    #[test]
    fn a_watch_reports_one_write_until_it_is_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let shared = crate::store::shared(Some(&path), TestClock::new(), Options::default());
        assert!(Watch::of(&shared).is_none(), "there is no log yet");
        fs::write(log_path(&path), "log").unwrap();
        let watch = Watch::of(&shared).expect("there is a log");
        let write = || {
            let mut log = OpenOptions::new().append(true).open(log_path(&path)).unwrap();
            (0..100).for_each(|_| log.write_all(b"frame").unwrap());
        };
        write();
        assert!(watch.wait(Duration::ZERO));
        write();
        assert!(!watch.wait(Duration::ZERO), "a busy log costs no event for each write");
        assert!(watch.renew());
        write();
        assert!(watch.wait(Duration::ZERO));
        // The last connection deletes the log, and the next one makes another file of that name.
        fs::remove_file(log_path(&path)).unwrap();
        fs::write(log_path(&path), "log").unwrap();
        watch.wait(Duration::ZERO);
        assert!(watch.renew());
        write();
        assert!(watch.wait(Duration::ZERO), "it follows the name");
    }
}
