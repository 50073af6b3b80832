//! The writer's repair of a file that seems malformed.

use abide_core::planted::{Bug, planted};

use super::Writer;
use crate::copies::{self, Copy};
use crate::indexes;

impl Writer {
    /// Rebuilds the indexes. Returns `false` when that was done recently and did not help.
    pub(super) fn mend(&mut self) -> bool {
        let now = self.shared.stopwatch.now();
        if self.mended_at.is_some_and(|mended_at| now.since(mended_at) < indexes::PAUSE) {
            return false;
        }
        let Some(writer) = &self.connection else { return self.mend_with(&[]) };
        match indexes::shared_page(&writer.connection) {
            Ok(None) => {}
            _ if planted(Bug::SharedPageGivenBack) => {}
            complaint => {
                tracing::error!(?complaint, "the file is damaged, and nothing in it is made anew");
                self.mended_at = Some(now);
                return false;
            }
        }
        let copies = copies::told(&writer.connection);
        self.mend_with(&copies)
    }

    fn mend_with(&mut self, copies: &[Copy]) -> bool {
        if self.begin().is_err() {
            return false;
        }
        self.mended_at = Some(self.shared.stopwatch.now());
        let failed = self.connection.as_ref().map(|writer| indexes::rebuild(&writer.connection, copies));
        if !copies.is_empty() && failed.is_some_and(|failed| !failed.is_empty()) {
            self.roll_back();
            return self.mend_with(&[]);
        }
        // The caches hold nothing that was read through an index: the failed transaction was rolled
        // back.
        self.commit().map_err(|_| self.roll_back()).is_ok()
    }
}
