//! Which calls of the public API came to a recorded outcome. A test takes all that there are from the source and compares.

/// A type and its method, as the source names them.
pub(crate) type ApiName = (&'static str, &'static str);

/// Calls a method of a builder and writes its name down: a name cannot be there without the call.
macro_rules! called {
    ($calls:ident, $builder:ident = $type:ident::$method:ident($($argument:expr),*)) => {
        $builder = $builder.$method($($argument),*);
        $calls.push((stringify!($type), stringify!($method)));
    };
}
pub(crate) use called;
