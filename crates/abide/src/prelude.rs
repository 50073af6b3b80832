//! The names that most programs need: `use abide::prelude::*;`.

pub use crate::select;
pub use crate::{
    Abide, ClientError, Ctx, Error, Filter, Handle, Result, ResultExt, Retry, Status, Timestamp, days, hours,
    minutes, ms, secs, task, workflow,
};
