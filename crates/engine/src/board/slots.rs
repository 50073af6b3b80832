//! The open operations of a run.

use std::collections::HashMap;

use abide_core::KeyHasher;

use super::OpenOp;

/// The open operations, by their numbers. One of them takes no memory of its own, because most
/// workflows wait for one thing at a time. Each of the others has its own box: a table has room for
/// several, and an operation is large.
#[derive(Default)]
pub(crate) struct Slots {
    one: Option<(u64, OpenOp)>,
    others: HashMap<u64, Box<OpenOp>, KeyHasher>,
}

impl Slots {
    pub(crate) fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.is_empty()
    }

    /// Adds an operation, under a number that no other one has.
    pub(crate) fn insert(&mut self, id: u64, op: OpenOp) {
        match self.one {
            None => self.one = Some((id, op)),
            Some(_) => _ = self.others.insert(id, Box::new(op)),
        }
    }

    pub(crate) fn get(&self, id: &u64) -> Option<&OpenOp> {
        match &self.one {
            Some((one, op)) if one == id => Some(op),
            _ => self.others.get(id).map(|op| &**op),
        }
    }

    pub(crate) fn get_mut(&mut self, id: &u64) -> Option<&mut OpenOp> {
        match &mut self.one {
            Some((one, op)) if one == id => Some(op),
            _ => self.others.get_mut(id).map(|op| &mut **op),
        }
    }

    pub(crate) fn remove(&mut self, id: &u64) -> Option<OpenOp> {
        match self.one.take_if(|(one, _)| one == id) {
            Some((_, op)) => Some(op),
            None => self.others.remove(id).map(|op| *op),
        }
    }

    /// Returns the operations, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u64, &OpenOp)> {
        let one = self.one.as_ref().map(|(id, op)| (id, op));
        one.into_iter().chain(self.others.iter().map(|(id, op)| (id, &**op)))
    }

    /// Returns the operations to be changed, in no particular order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&u64, &mut OpenOp)> {
        let one = self.one.as_mut().map(|(id, op)| (&*id, op));
        one.into_iter().chain(self.others.iter_mut().map(|(id, op)| (id, &mut **op)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &OpenOp> {
        self.iter().map(|(_, op)| op)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut OpenOp> {
        self.iter_mut().map(|(_, op)| op)
    }
}
