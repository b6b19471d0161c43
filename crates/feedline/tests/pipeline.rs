//! The builder from outside: the batches of the same calls as JSON, and refusals with their value.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test makes files, and a panic is its answer"
)]

use feedline::{
    Array, BatchOptions, DecodeOptions, Kind, Loader, LoaderOptions, Pipeline, Result,
    ToFloatOptions, col,
};
use feedline_core::config::{Given, Settings};
use feedline_core::source::folder::Folder;
use feedline_core::testing::photos::photo_jpeg;
use std::sync::Arc;

fn x(values: &[i64]) -> Pipeline {
    Pipeline::arrays([("x", Array::new(values, &[values.len()]))]).unwrap()
}

fn batches(loader: &Loader) -> Vec<Vec<i64>> {
    loader.epoch().unwrap().map(|batch| batch.unwrap().values("x").unwrap()).collect()
}

#[test]
fn methods_give_the_batches_of_the_same_calls_as_json() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..12 {
        let class = folder.path().join(["cat", "dog"][number % 2]);
        std::fs::create_dir_all(&class).unwrap();
        let photo = photo_jpeg(number as u64, 60 + number, 50, 85);
        std::fs::write(class.join(format!("{number}.jpg")), photo).unwrap();
    }
    let built = Pipeline::images(folder.path())
        .unwrap()
        .shuffle(3)
        .take(10)
        .decode(DecodeOptions { mode: feedline::Mode::Gray, ..Default::default() })
        .random_resized_crop((24, 16))
        .flip(0.5)
        .to_float(ToFloatOptions { mean: 0.5.into(), std: 0.25.into(), ..Default::default() })
        .batch(BatchOptions { drop_last: true, ..4.into() })
        .loader_with(LoaderOptions { seed: Some(9), threads: 2.into(), ..Default::default() })
        .unwrap();
    let json = r#"[{"call": "shuffle", "seed": 3}, {"call": "take", "samples": 10},
        {"call": "decode", "mode": "gray"}, {"call": "random_resized_crop", "size": [24, 16]},
        {"call": "flip", "p": 0.5}, {"call": "to_float", "mean": 0.5, "std": 0.25},
        {"call": "batch", "size": 4, "drop_last": true}, {"call": "loader", "seed": 9, "threads": 2}]"#;
    let settings = Settings::parse(json, &Given::Files).unwrap();
    let source = Arc::new(Folder::images(folder.path()).unwrap());
    let read = Loader::new(source, settings).unwrap();
    let content = |loader: &Loader| -> Vec<(Vec<f32>, Vec<i64>)> {
        let values = |batch: feedline::Batch| {
            (batch.values("image").unwrap(), batch.values("label").unwrap())
        };
        loader.epoch().unwrap().map(|batch| values(batch.unwrap())).collect()
    };
    let (built_batches, read_batches) = (content(&built), content(&read));
    assert_eq!(built_batches.len(), 2);
    assert_eq!(built_batches[0].0.len(), 4 * 24 * 16);
    assert_eq!(built_batches, read_batches);
    assert_eq!(built.state(), read.state());
}

#[test]
fn samples_are_filtered_joined_and_mixed() {
    let kept = x(&[1, 2, 3, 4, 5]).filter(col("x").gt(1) & !col("x").is_in([3, 4]));
    assert_eq!(batches(&kept.batch(2).loader().unwrap()), [[2, 5]]);
    let joined = x(&[1, 2, 3]).take(2).concat(x(&[7, 8])).unwrap();
    assert_eq!(batches(&joined.batch(4).loader().unwrap()), [[1, 2, 7, 8]]);
    let mixed = Pipeline::mix([(x(&[1, 1]), 1.0), (x(&[2, 2]), 1.0)]).unwrap();
    let mut samples = batches(&mixed.batch(4).loader().unwrap()).concat();
    samples.sort_unstable();
    assert_eq!(samples, [1, 1, 2, 2]);
    let zipped = Pipeline::arrays([("y", Array::new(&[0.5_f32, 1.5], &[2]))]).unwrap();
    let zipped = zipped.zip(&x(&[4, 5])).unwrap().batch(2).loader().unwrap();
    assert_eq!(batches(&zipped), [[4, 5]]);
}

#[test]
fn mistakes_are_refused_when_the_loader_is_built_with_the_value_that_was_given() {
    let ten = || x(&[0; 10]);
    let cases: [(Result<Loader>, &str); 6] = [
        (ten().take(0).batch(2).loader(), "got 0"),
        (ten().batch(0).loader(), "got 0"),
        (ten().flip(f64::NAN).batch(2).loader(), "got NaN"),
        (ten().batch(2).shuffle(1).loader(), "shuffle cannot follow batch"),
        (ten().loader(), "there is no batch size"),
        (ten().filter(col("z").lt(5)).batch(2).loader(), "no field \"z\""),
    ];
    for (made, said) in cases {
        let error = made.err().unwrap();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.message().contains(said), "{error}");
        assert!(!error.hint().contains("help("), "a hint for Python: {error}");
    }
    let error = ten().batch(0).loader().err().unwrap();
    assert_eq!(error.hint(), "see the documentation of feedline::Pipeline::batch");
    let short = Array { dtype: feedline::Dtype::Int64, shape: vec![3], bytes: vec![0; 8] };
    let error = Pipeline::arrays([("x", short)]).err().unwrap();
    assert!(error.message().contains("has 8 bytes, not 24"), "{error}");
    let unequal = [("x", Array::new(&[1_u8], &[1])), ("y", Array::new(&[1_u8, 2], &[2]))];
    let error = Pipeline::arrays(unequal).err().unwrap();
    assert!(error.message().contains("array \"y\" has 2 rows, array \"x\" has 1"), "{error}");
}
