#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    abide_cli::readers::read("sheaf", bytes);
});
