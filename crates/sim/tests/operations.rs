//! Every public operation is simulated. The list comes from the source of `abide`: an operation
//! that is added later fails this test until the generator has it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Group, TokenStream, TokenTree};
use syn::parse::{Parse, ParseStream, Parser};
use syn::visit::Visit;
use syn::{File, ImplItem, ImplItemFn, Item, ItemImpl, ReturnType, Type, Visibility};

/// The types where users begin.
const ROOTS: [&str; 3] = ["Ctx", "Abide", "Handle"];

/// The types that do nothing: their methods only read them.
const VALUES: [&str; 1] = ["ClientError"];

/// The operations that are not simulated, and why. Every other public operation has to be called in
/// one of the seeds of `cargo xtask test`, and to reach a recorded outcome.
const EXEMPT: [(&str, &str); 7] = [
    ("Abide::open", "it opens a store by its URL, in real time; it is `Builder::open` with nothing said"),
    ("Abide::client", "it opens a store by its URL, in real time; it is `Builder::client` with nothing said"),
    ("Builder::host_patience", "no task of a simulation hosts an execution"),
    ("Ctx::postgres", "it needs a server, in real time; a torture runs transaction steps on one"),
    ("SendSignal::enqueue_in", "it writes into a transaction of the application, on a connection of its own"),
    ("Start::enqueue_in", "it writes into a transaction of the application, on a connection of its own"),
    ("Builder::on_idle", "a simulated store has no thread of its own, and drops nothing when it is idle"),
];

#[test]
fn every_public_operation_comes_to_a_recorded_outcome() {
    let operations = Source::read().operations();
    let text = std::fs::read_to_string(crate_folder().join("coverage.txt")).unwrap();
    let called: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("called ")).collect();
    let exempt: BTreeMap<_, _> = EXEMPT.into_iter().collect();
    let missing: Vec<&String> = operations
        .iter()
        .filter(|operation| !called.contains(operation.as_str()) && !exempt.contains_key(operation.as_str()))
        .collect();
    assert!(missing.is_empty(), "no seed comes to an outcome of {missing:?}: add them to the generator");
    let stale: Vec<_> =
        exempt.keys().filter(|name| called.contains(**name) || !operations.contains(**name)).collect();
    assert!(stale.is_empty(), "{stale:?} need no exemption");
    let unknown: Vec<_> = called.iter().filter(|name| !operations.contains(**name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are counted, but no public operations");
}

/// The list has the operations that a person would name: through macros, builders and the values
/// that they yield when awaited.
#[test]
fn the_source_tells_builders_and_what_they_give() {
    let operations = Source::read().operations();
    let named = [
        "Ctx::step",
        "Step::timeout",
        "Receive::upgrade",
        "RunChild::priority",
        "Child::result",
        "Unblock::edit",
        "Builder::open",
    ];
    for name in named {
        assert!(operations.contains(name), "{name} is missing in {operations:?}");
    }
    for hidden in ["Ctx::of_workflow", "Ctx::open", "Builder::simulated", "Filter::tag"] {
        assert!(!operations.contains(hidden), "{hidden} is not one of them");
    }
}

/// A module that moves to a folder of its own takes its operations with it.
#[test]
fn the_source_is_read_with_its_folders() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("ctx/more")).unwrap();
    for (file, method) in [("ctx.rs", "one"), ("ctx/two.rs", "two"), ("ctx/more/three.rs", "three")] {
        let text = format!("impl Ctx {{ pub fn {method}(&self) {{}} }}");
        std::fs::write(folder.path().join(file), text).unwrap();
    }
    let operations = Source::of(folder.path()).operations();
    assert!(operations.iter().eq(["Ctx::one", "Ctx::three", "Ctx::two"]), "{operations:?}");
}

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The types of `abide`, as its source describes them.
#[derive(Default)]
struct Source {
    /// The public methods of each type, and the types in each method's return type.
    methods: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    /// The types that each type yields when it is awaited.
    outputs: BTreeMap<String, BTreeSet<String>>,
    /// The methods that a macro writes into the types that call it.
    macros: BTreeMap<String, Vec<ImplItemFn>>,
}

impl Source {
    fn read() -> Self {
        Self::of(&crate_folder().join("../abide/src"))
    }

    fn of(folder: &Path) -> Self {
        let mut source = Self::default();
        let items: Vec<Item> = files_in(folder).into_iter().flat_map(|file| file.items).collect();
        for item in &items {
            if let Item::Macro(item) = item
                && let Some(name) = &item.ident
                && let Ok(body) = syn::parse2::<MacroMethods>(item.mac.tokens.clone())
            {
                source.macros.insert(name.to_string(), body.0);
            }
        }
        for item in &items {
            if let Item::Impl(item) = item {
                source.add(item);
            }
        }
        source
    }

    fn add(&mut self, item: &ItemImpl) {
        let Some(name) = name_of(&item.self_ty) else { return };
        if let Some((of, _)) = &item.trait_ {
            let of = of.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
            if of == "Future" || of == "IntoFuture" {
                for item in &item.items {
                    if let ImplItem::Type(output) = item
                        && output.ident == "Output"
                    {
                        self.outputs.entry(name.clone()).or_default().extend(names_in(&output.ty));
                    }
                }
            }
            return;
        }
        for item in &item.items {
            match item {
                ImplItem::Fn(method) => self.add_method(&name, method),
                ImplItem::Macro(call) => {
                    let called = call.mac.path.segments.last().map(|segment| segment.ident.to_string());
                    for method in
                        called.and_then(|called| self.macros.get(&called).cloned()).unwrap_or_default()
                    {
                        self.add_method(&name, &method);
                    }
                }
                _ => {}
            }
        }
    }

    fn add_method(&mut self, of: &str, method: &ImplItemFn) {
        if !matches!(method.vis, Visibility::Public(_)) {
            return;
        }
        let gives = match &method.sig.output {
            ReturnType::Default => BTreeSet::new(),
            ReturnType::Type(_, output) => names_in(output),
        };
        self.methods.entry(of.to_owned()).or_default().insert(method.sig.ident.to_string(), gives);
    }

    /// Returns everything that can be called from the roots on, as `Type::method`.
    fn operations(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut left: Vec<String> = ROOTS.map(str::to_owned).to_vec();
        while let Some(name) = left.pop() {
            if VALUES.contains(&name.as_str()) || !seen.insert(name.clone()) {
                continue;
            }
            left.extend(self.outputs.get(&name).into_iter().flatten().cloned());
            for (method, gives) in self.methods.get(&name).into_iter().flatten() {
                found.insert(format!("{name}::{method}"));
                left.extend(gives.iter().cloned());
            }
        }
        found
    }
}

/// Returns the files of a folder and of the folders in it. A module may be in one of these.
fn files_in(folder: &Path) -> Vec<File> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap());
        }
    }
    files
}

/// The methods in the first arm of a macro.
struct MacroMethods(Vec<ImplItemFn>);

impl Parse for MacroMethods {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let pattern;
        syn::parenthesized!(pattern in input);
        pattern.parse::<TokenStream>()?;
        input.parse::<syn::Token![=>]>()?;
        let body;
        syn::braced!(body in input);
        let body = without_variables(body.parse()?);
        input.parse::<TokenStream>()?;
        let methods = |body: ParseStream<'_>| {
            let mut methods = Vec::new();
            while !body.is_empty() {
                methods.push(body.parse()?);
            }
            Ok(methods)
        };
        methods.parse2(body).map(Self)
    }
}

/// Returns the body of a macro as if its variables were plain names. Repeated attributes, such as
/// the documentation that the caller supplies, are left out.
fn without_variables(body: TokenStream) -> TokenStream {
    let mut plain = TokenStream::new();
    let mut left = body.into_iter().peekable();
    while let Some(token) = left.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '$' => {
                let Some(TokenTree::Group(repeated)) = left.peek().cloned() else { continue };
                left.next();
                left.next();
                let is_attribute = repeated.stream().to_string().starts_with('#');
                if !is_attribute {
                    plain.extend(without_variables(repeated.stream()));
                }
            }
            TokenTree::Group(group) => {
                let inner = without_variables(group.stream());
                plain.extend([TokenTree::Group(Group::new(group.delimiter(), inner))]);
            }
            token => plain.extend([token]),
        }
    }
    plain
}

fn name_of(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

/// Returns the names of all types in a type.
fn names_in(of: &Type) -> BTreeSet<String> {
    struct Names(BTreeSet<String>);
    impl Visit<'_> for Names {
        fn visit_path_segment(&mut self, segment: &syn::PathSegment) {
            self.0.insert(segment.ident.to_string());
            syn::visit::visit_path_segment(self, segment);
        }
    }
    let mut names = Names(BTreeSet::new());
    names.visit_type(of);
    names.0
}
