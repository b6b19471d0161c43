//! Thousands of corrupt files: images or faults, never a panic, a hang or a runaway allocation.

use feedline_core::decode::{Mode, png};
use feedline_core::random::Random;
use feedline_core::testing::fuzz;
use feedline_core::testing::photos::{photo, photo_jpeg};
use std::fs;
use std::path::Path;

/// The peak memory of this process, in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A file with some bytes changed, truncated, doubled or removed.
fn mutate(file: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..1 + random.below(4) {
        let length = bytes.len() as u64;
        let at = random.below(length.max(1)) as usize;
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let end = (at + random.below(40) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            2 => {
                let end = (at + random.below(40) as usize).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            // Headers are short but decisive: half of the changes go there.
            3 if length > 0 => {
                let at = random.below(length.min(200)) as usize;
                bytes[at] = random.bits() as u8;
            }
            _ if length > 0 => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/decode");
    let mut files: Vec<Vec<u8>> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| fs::read(entry.unwrap().path()).unwrap())
        .filter(|file| file.len() > 1)
        .map(|file| file[1..].to_vec())
        .collect();
    files.push(photo_jpeg(1, 48, 40, 80));
    files.push(png::encode(&photo(2, 20, 16), 20, 16, Mode::Rgb).unwrap());
    files
}

#[test]
fn thousands_of_mutated_images_are_images_or_faults() {
    let seeds = seeds();
    let before = peak_memory();
    for number in 0..6000 {
        let mut random = Random::keyed(&[2026, number]);
        let file = mutate(&seeds[number as usize % seeds.len()], &mut random);
        let input = [&[random.bits() as u8], file.as_slice()].concat();
        let outcome = std::panic::catch_unwind(|| fuzz::decode(&input));
        assert!(outcome.is_ok(), "mutation number {number}");
    }
    let grown = peak_memory() - before;
    assert!(grown < 200 << 20, "memory grew by {grown} bytes");
}

/// A fuzz target, and the function it calls.
type Target = (&'static str, fn(&[u8]));

#[test]
fn thousands_of_mutated_records_are_records_or_faults() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let targets: [Target; 7] = [
        ("tfrecord", fuzz::tfrecord),
        ("example", fuzz::example),
        ("tar", fuzz::tar),
        ("npy", fuzz::npy),
        ("jsonl", fuzz::jsonl),
        ("csv", fuzz::csv),
        ("unpack", fuzz::unpack),
    ];
    for (target, entry) in targets {
        let seeds: Vec<Vec<u8>> = fs::read_dir(corpus.join(target))
            .unwrap()
            .map(|file| fs::read(file.unwrap().path()).unwrap())
            .collect();
        for number in 0..20_000 {
            let mut random = Random::keyed(&[2026, number]);
            let input = mutate(&seeds[number as usize % seeds.len()], &mut random);
            let outcome = std::panic::catch_unwind(|| entry(&input));
            assert!(outcome.is_ok(), "mutation number {number} of {target}");
        }
    }
}

#[test]
fn the_fuzz_corpus_passes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let targets: [Target; 9] = [
        ("decode", fuzz::decode),
        ("settings", fuzz::settings),
        ("tfrecord", fuzz::tfrecord),
        ("example", fuzz::example),
        ("tar", fuzz::tar),
        ("npy", fuzz::npy),
        ("jsonl", fuzz::jsonl),
        ("csv", fuzz::csv),
        ("unpack", fuzz::unpack),
    ];
    for (target, entry) in targets {
        let mut count = 0;
        for file in fs::read_dir(corpus.join(target)).unwrap() {
            entry(&fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count >= 10, "{count} files in the corpus of {target}");
    }
}

#[test]
fn a_header_that_claims_four_billion_pixels_is_refused_before_anything_is_allocated() {
    use feedline_core::decode::{ImageHeader, Options};
    use feedline_core::error::Kind;
    let mut jpeg = photo_jpeg(1, 48, 40, 80);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
    let mut png = png::encode(&photo(2, 20, 16), 20, 16, Mode::Rgb).unwrap();
    png[16..24].copy_from_slice(&[0, 0, 0xff, 0xdc, 0, 0, 0xff, 0xdc]);
    let before = peak_memory();
    for bomb in [jpeg, png] {
        let error = ImageHeader::read(&bomb, &Options::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge, "{error}");
        assert!(error.message().contains("65500 x 65500"), "{error}");
    }
    assert!(peak_memory() - before < 10 << 20);
}
