//! What stands between a store and its server: proxies that read their protocol.

pub(crate) mod frames;
pub(crate) mod gates;
