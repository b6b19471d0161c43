//! The cost of the parts alone: read, decode, resize on some threads, with no loader around them.
//! The benchmark `images` compares the loader with it.
//!
//! ```text
//! cargo run --release --features testing --example bare -- FOLDER center|random[-float] THREADS
//! ```

#![allow(clippy::print_stdout, reason = "a program that prints its result")]

use feedline_core::config::{
    Call, CenterCropOptions, DecodeOptions, FlipOptions, Given, Settings, ToFloatOptions,
};
use feedline_core::error::Result;
use feedline_core::sample::{Extent, Ticket};
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::sys::{clock, file};
use feedline_core::transform::{Native, Picture, Prepared, Transform};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, workload, threads] = arguments.as_slice() else {
        println!("usage: bare FOLDER center|random[-float] THREADS");
        return Ok(());
    };
    let mut calls = vec![Call::Decode(DecodeOptions::default())];
    calls.extend(match workload.strip_suffix("-float").unwrap_or(workload) {
        "random" => [Call::RandomResizedCrop(224.into()), Call::Flip(FlipOptions::default())],
        _ => [Call::Resize(256.into()), Call::CenterCrop(CenterCropOptions { size: 224.into() })],
    });
    if workload.ends_with("-float") {
        calls.push(Call::ToFloat(ToFloatOptions {
            mean: [0.485, 0.456, 0.406].into(),
            std: [0.229, 0.224, 0.225].into(),
            ..Default::default()
        }));
    }
    let settings = Settings::new(&calls, &Given::Files)?;
    let transform = Transform {
        picture: Picture::Encoded(settings.decoding.unwrap_or_default()),
        steps: settings.steps,
        output: settings.output,
        seed: 1,
    };
    let row_bytes = 224 * 224 * 3 * transform.output.dtype.bytes();
    let source = Folder::images(Path::new(folder))?;
    let next = AtomicU64::new(0);
    let (before, start) = (cpu_seconds(), clock::now());
    std::thread::scope(|scope| {
        for _ in 0..threads.parse().unwrap_or(2) {
            scope.spawn(|| {
                let (mut native, mut row) = (Native::default(), vec![0; row_bytes]);
                let mut bytes = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= source.len() {
                        return;
                    }
                    let Extent::File(path) = source.extent(index) else { return };
                    let ticket = Ticket { position: index, epoch: 0, index };
                    let made = file::Handle::open(&path)
                        .and_then(|handle| {
                            bytes.resize(handle.size()? as usize, 0);
                            handle.read_at(&mut bytes, 0)
                        })
                        .is_ok()
                        && Prepared::new(&transform, &bytes, ticket)
                            .and_then(|prepared| {
                                native.make(&transform, &prepared, &bytes, &mut row)
                            })
                            .is_ok();
                    assert!(made, "{} is a good file", path.display());
                }
            });
        }
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - before);
    println!(r#"{{"images": {}, "seconds": {seconds}, "cpu_seconds": {cpu}}}"#, source.len());
    Ok(())
}

/// User and system time of this process, as the kernel counts it.
fn cpu_seconds() -> f64 {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    usage.tv_sec as f64 + usage.tv_nsec as f64 / 1e9
}
