#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| feedline_core::testing::fuzz::unpack(input));
