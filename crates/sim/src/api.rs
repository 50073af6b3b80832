//! Calls of the public API that came to a recorded outcome. A test reads the list of all calls from
//! the source and compares.

/// A type and its method, as the source names them.
pub(crate) type ApiName = (&'static str, &'static str);

/// Calls a method of a builder and records its name, so no name is recorded without its call.
macro_rules! called {
    ($calls:ident, $builder:ident = $type:ident::$method:ident($($argument:expr),*)) => {
        $builder = $builder.$method($($argument),*);
        $calls.push((stringify!($type), stringify!($method)));
    };
}
pub(crate) use called;
