//! Packed items: Python values in one stretch of memory that reference counts do not touch.
#![allow(unsafe_code, reason = "the buffer protocol and text with surrogates are C interfaces")]

use feedline_core::error::{Error, Kind};
use feedline_core::format::items::{Build, ItemWriter, Items, MAX_DEPTH, TaggedValues};
use feedline_core::sys::sealed::Sealed;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple, PyType,
};
use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::errors::raise;
use crate::memory::{fill, slices, views};

/// Less than this is copied to other processes: that costs less than a descriptor.
const SHARED_FROM: usize = 1 << 20;
/// How often a long loop looks for Ctrl-C.
const ITEMS_PER_CHECK: usize = 1 << 16;
/// How many items a repr shows.
const SHOWN: usize = 3;

enum Bytes {
    Own(Vec<u8>),
    Shared(Sealed),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(memory) => memory.as_slice(),
        }
    }
}

/// The memory of packed items. It is inherited by forks and can be sent to other processes.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct PackedMemory {
    bytes: Bytes,
    items: Items,
}

impl PackedMemory {
    fn new(bytes: Bytes) -> PyResult<PackedMemory> {
        let items = Items::open(bytes.as_slice()).map_err(raise)?;
        Ok(PackedMemory { bytes, items })
    }

    fn kept(bytes: Vec<u8>) -> PyResult<PackedMemory> {
        let shared = match bytes.len() >= SHARED_FROM {
            // Without a descriptor it still works, but is copied into other processes that are not forks.
            true => Sealed::create("feedline-packed", &bytes).ok(),
            false => None,
        };
        PackedMemory::new(shared.map_or(Bytes::Own(bytes), Bytes::Shared))
    }

    fn get<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
        self.items.get(self.bytes.as_slice(), number, &mut Objects(py))
    }
}

#[pymethods]
impl PackedMemory {
    /// Memory with a copy of these bytes, which another one has.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: &Bound<'_, PyAny>) -> PyResult<PackedMemory> {
        let views = views(std::slice::from_ref(bytes))?;
        // SAFETY: the bytes of a pickle; they are copied with the GIL held.
        let copy = unsafe { slices(&views) }?.concat();
        py.detach(|| PackedMemory::kept(copy))
    }

    /// The memory behind a descriptor of another process, which is taken over.
    #[staticmethod]
    fn from_descriptor(descriptor: c_int) -> PyResult<PackedMemory> {
        // SAFETY: the caller gives it away.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        PackedMemory::new(Bytes::Shared(Sealed::open(owned)?))
    }

    /// The descriptor with which another process can map it, if there is one; it stays ours.
    fn descriptor(&self) -> Option<c_int> {
        match &self.bytes {
            Bytes::Own(_) => None,
            Bytes::Shared(memory) => memory.descriptor().map(|descriptor| descriptor.as_raw_fd()),
        }
    }

    fn __len__(&self) -> usize {
        self.bytes.as_slice().len()
    }

    fn __reduce_ex__<'py>(slf: Bound<'py, Self>, protocol: c_int) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("feedline.packed")?.getattr("_reduce_memory")?.call1((slf, protocol))
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes.as_slice();
        let address = bytes.as_ptr().cast_mut();
        // SAFETY: the view comes from Python and cannot write; the bytes live as long as this object, which the view
        // holds.
        unsafe { fill(slf.as_any(), view, flags, address, bytes.len(), true) }
    }
}

/// Python objects from packed values.
struct Objects<'py>(Python<'py>);

impl<'py> Build for Objects<'py> {
    type Value = Bound<'py, PyAny>;
    type Error = PyErr;

    fn none(&mut self) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.0.None().into_bound(self.0))
    }

    fn bool(&mut self, value: bool) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyBool::new(self.0, value).to_owned().into_any())
    }

    fn int(&mut self, value: i64) -> PyResult<Bound<'py, PyAny>> {
        Ok(value.into_pyobject(self.0)?.into_any())
    }

    fn wide(&mut self, value: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let signed = PyDict::new(self.0);
        signed.set_item("signed", true)?;
        let value = PyBytes::new(self.0, value);
        self.0.get_type::<PyInt>().call_method("from_bytes", (value, "little"), Some(&signed))
    }

    fn float(&mut self, value: f64) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyFloat::new(self.0, value).into_any())
    }

    fn text(&mut self, value: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let (start, length) = (value.as_ptr().cast(), value.len() as isize);
        // SAFETY: the bytes are valid for the call, which returns a new reference or sets an exception.
        unsafe {
            let text = ffi::PyUnicode_DecodeUTF8(start, length, c"surrogatepass".as_ptr());
            Bound::from_owned_ptr_or_err(self.0, text)
        }
    }

    fn bytes(&mut self, value: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyBytes::new(self.0, value).into_any())
    }

    fn tuple(&mut self, values: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyTuple::new(self.0, values)?.into_any())
    }

    fn list(&mut self, values: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(self.0, values)?.into_any())
    }

    fn dict(
        &mut self,
        pairs: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dict = PyDict::new(self.0);
        for (key, value) in pairs {
            dict.set_item(key, value)?;
        }
        Ok(dict.into_any())
    }

    fn corrupt(&mut self, error: Error) -> PyErr {
        raise(error)
    }
}

/// Why a value cannot be packed, and where it is in its item.
enum Refusal {
    Unfit { steps: Vec<String>, what: String, hint: String },
    Raised(PyErr),
}

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Refusal {
        Refusal::Raised(error)
    }
}

impl Refusal {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal::Unfit { steps: Vec::new(), what: what.into(), hint: hint.into() }
    }

    /// The same refusal, of a part of a value; steps are collected from the inside to the outside.
    fn inside(mut self, step: impl FnOnce() -> String) -> Refusal {
        if let Refusal::Unfit { steps, .. } = &mut self {
            steps.push(step());
        }
        self
    }

    fn raise(self, place: &str) -> PyErr {
        match self {
            Refusal::Raised(error) => error,
            Refusal::Unfit { steps, what, hint } => {
                let steps: String = steps.into_iter().rev().collect();
                let message = format!("pack: {place}{steps} {what}");
                raise(Error::new(Kind::InvalidArgument, message).with_hint(hint))
            }
        }
    }
}

/// Writes a value; only exact types, so that what is read has the type of what was written.
fn write(values: &mut TaggedValues, value: &Bound<'_, PyAny>, depth: usize) -> Result<(), Refusal> {
    if depth >= MAX_DEPTH {
        let what = format!("is nested more than {MAX_DEPTH} levels deep");
        return Err(Refusal::new(what, "store the inner values by number, in a second sequence"));
    }
    if let Ok(text) = value.cast_exact::<PyString>() {
        match text.to_str() {
            Ok(text) => values.text(text.as_bytes()),
            // Lone surrogates: the name of a file that is no UTF-8.
            Err(_) => values.text(
                text.call_method1("encode", ("utf-8", "surrogatepass"))?
                    .cast_into::<PyBytes>()
                    .map_err(PyErr::from)?
                    .as_bytes(),
            ),
        }
    } else if let Ok(int) = value.cast_exact::<PyInt>() {
        match int.extract::<i64>() {
            Ok(int) => values.int(int),
            Err(_) => values.wide(&wide(int)?),
        }
    } else if let Ok(float) = value.cast_exact::<PyFloat>() {
        values.float(float.value());
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        values.bytes(bytes.as_bytes());
    } else if let Ok(bool) = value.cast_exact::<PyBool>() {
        values.bool(bool.is_true());
    } else if value.is_none() {
        values.none();
    } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        values.tuple(tuple.len());
        for (place, part) in tuple.iter().enumerate() {
            write(values, &part, depth + 1).map_err(|no| no.inside(|| format!("[{place}]")))?;
        }
    } else if let Ok(list) = value.cast_exact::<PyList>() {
        // A copy, because another thread may change the list meanwhile.
        let parts: Vec<_> = list.iter().collect();
        values.list(parts.len());
        for (place, part) in parts.iter().enumerate() {
            write(values, part, depth + 1).map_err(|no| no.inside(|| format!("[{place}]")))?;
        }
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        let pairs: Vec<_> = dict.iter().collect();
        values.dict(pairs.len());
        for (key, part) in &pairs {
            let step = || format!("[{}]", shown(key));
            write(values, key, depth + 1).map_err(|no| no.inside(|| " has a key that".into()))?;
            write(values, part, depth + 1).map_err(|no| no.inside(step))?;
        }
    } else {
        let kind = value.get_type();
        return Err(Refusal::new(format!("is a {}", type_name(&kind)), hint(value, &kind)));
    }
    Ok(())
}

/// An integer of more than 64 bits, as signed bytes.
fn wide(int: &Bound<'_, PyInt>) -> PyResult<Vec<u8>> {
    let bits: usize = int.call_method0("bit_length")?.extract()?;
    let signed = PyDict::new(int.py());
    signed.set_item("signed", true)?;
    int.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&signed))?.extract()
}

fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "...".into(), |text| text.to_string_lossy().into_owned())
}

fn type_name(kind: &Bound<'_, PyType>) -> String {
    let name = kind.fully_qualified_name();
    name.map_or_else(|_| "value".into(), |name| name.to_string_lossy().into_owned())
}

/// What to do with a value of a type that cannot be packed.
fn hint(value: &Bound<'_, PyAny>, kind: &Bound<'_, PyType>) -> String {
    let module = kind.module().map(|name| name.to_string()).unwrap_or_default();
    let has = |name: &str| value.hasattr(name).unwrap_or_default();
    if module.starts_with("numpy") || module.starts_with("torch") {
        if has("ndim") && value.getattr("ndim").is_ok_and(|ndim| ndim.eq(0).unwrap_or_default()) {
            return "convert it to a number of Python with .item()".into();
        }
        return "keep arrays together in one array, which is not copied; or convert it with .tolist()".into();
    }
    if module.starts_with("pathlib") {
        return "convert it with str(path)".into();
    }
    if value.is_instance_of::<PyTuple>() {
        return "convert it with tuple(value)".into();
    }
    if value.is_instance_of::<PyDict>() {
        return "convert it with dict(value)".into();
    }
    if value.is_instance_of::<PyString>() || value.is_instance_of::<PyInt>() {
        return "convert it to a plain value, for example with str(value), int(value) or value.value".into();
    }
    "str, bytes, int, float, bool, None, and tuples, lists and dicts of these can be packed".into()
}

/// Packs the items of an iterable.
#[pyfunction]
pub(crate) fn pack_items(py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<PackedList> {
    let mut writer = ItemWriter::default();
    for item in items.try_iter()? {
        let place = writer.count();
        write(&mut writer.values, &item?, 0)
            .map_err(|refusal| refusal.raise(&format!("item {place}")))?;
        writer.end_item();
        if place % ITEMS_PER_CHECK == 0 {
            py.check_signals()?;
        }
    }
    py.detach(|| PackedMemory::kept(writer.finish_list().map_err(raise)?))
        .and_then(|memory| PackedList::whole(py, memory))
}

/// Packs pairs of a key and a value, so that values are found by key.
#[pyfunction]
pub(crate) fn pack_pairs(py: Python<'_>, pairs: &Bound<'_, PyAny>) -> PyResult<PackedList> {
    let mut writer = ItemWriter::default();
    for pair in pairs.try_iter()? {
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
        writer.values.tuple(2);
        write_key(&mut writer.values, &key, 1)
            .map_err(|refusal| refusal.raise(&format!("key {}", shown(&key))))?;
        write(&mut writer.values, &value, 1)
            .map_err(|refusal| refusal.raise(&format!("the value of key {}", shown(&key))))?;
        writer.end_item();
        if writer.count() % ITEMS_PER_CHECK == 0 {
            py.check_signals()?;
        }
    }
    py.detach(|| PackedMemory::kept(writer.finish_mapping().map_err(raise)?))
        .and_then(|memory| PackedList::whole(py, memory))
}

/// Writes a key. Keys are equal if and only if their bytes are: so no `True`, which is equal to 1, and no 1.0.
fn write_key(
    values: &mut TaggedValues,
    key: &Bound<'_, PyAny>,
    depth: usize,
) -> Result<(), Refusal> {
    if let Ok(tuple) = key.cast_exact::<PyTuple>() {
        values.tuple(tuple.len());
        for (place, part) in tuple.iter().enumerate() {
            write_key(values, &part, depth + 1).map_err(|no| no.inside(|| format!("[{place}]")))?;
        }
        return Ok(());
    }
    let is_key = key.is_exact_instance_of::<PyString>()
        || key.is_exact_instance_of::<PyInt>()
        || key.is_exact_instance_of::<PyBytes>()
        || key.is_none();
    if !is_key || depth >= MAX_DEPTH {
        let kind = key.get_type();
        let hint = "keys are str, bytes, int, None, and tuples of these";
        return Err(Refusal::new(format!("is a {}", type_name(&kind)), hint));
    }
    write(values, key, depth)
}

/// A key of a type that can be packed, if there is one that is equal to it, such as 1 to `True` and `numpy.int64(1)`.
fn plain<'py>(key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = key.py();
    if key.is_exact_instance_of::<PyString>() || key.is_exact_instance_of::<PyInt>() {
        return Ok(key.clone());
    }
    if let Ok(text) = key.cast::<PyString>() {
        return py.get_type::<PyString>().call_method1("__str__", (text,));
    }
    let is_whole = key.cast::<PyFloat>().is_ok_and(|float| float.value().fract() == 0.0);
    if is_whole || key.hasattr("__index__")? {
        return py.get_type::<PyInt>().call1((key,));
    }
    Ok(key.clone())
}

/// A read-only sequence of packed items, each of which is created when it is accessed.
#[pyclass(module = "feedline._native", frozen, sequence)]
pub(crate) struct PackedList {
    memory: Py<PackedMemory>,
    /// The items `start`, `start + step`, ... of the memory.
    start: usize,
    step: isize,
    count: usize,
}

impl PackedList {
    fn whole(py: Python<'_>, memory: PackedMemory) -> PyResult<PackedList> {
        let count = memory.items.count();
        Ok(PackedList { memory: Py::new(py, memory)?, start: 0, step: 1, count })
    }

    /// The item at a place below `count`.
    fn at<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyAny>> {
        self.memory.get().get(py, self.start.wrapping_add_signed(place as isize * self.step))
    }

    fn place(&self, at: isize) -> Option<usize> {
        let place = if at < 0 { at.checked_add_unsigned(self.count)? } else { at };
        usize::try_from(place).ok().filter(|place| *place < self.count)
    }

    fn is_whole(&self) -> bool {
        self.start == 0 && self.step == 1 && self.count == self.memory.get().items.count()
    }

    fn is_same(&self, other: &PackedList) -> bool {
        std::ptr::eq(self.memory.get(), other.memory.get())
            && self.count == other.count
            && (self.count == 0 || self.start == other.start)
            && (self.count < 2 || self.step == other.step)
    }

    /// The first place from `from` to `to` whose item is equal to a value.
    fn find_equal(
        &self,
        value: &Bound<'_, PyAny>,
        from: usize,
        to: usize,
    ) -> PyResult<Option<usize>> {
        for place in from..to {
            if self.at(value.py(), place)?.eq(value)? {
                return Ok(Some(place));
            }
            if place % ITEMS_PER_CHECK == 0 {
                value.py().check_signals()?;
            }
        }
        Ok(None)
    }
}

#[pymethods]
impl PackedList {
    /// The items `start`, `start + step`, ... of a memory.
    #[new]
    fn new(
        memory: Py<PackedMemory>,
        start: usize,
        step: isize,
        count: usize,
    ) -> PyResult<PackedList> {
        let items = memory.get().items.count() as i128;
        let last = start as i128 + (count as i128 - 1).max(0) * step as i128;
        let is_inside = |place: i128| (0..items).contains(&place);
        if step == 0 || (count > 0 && !(is_inside(start as i128) && is_inside(last))) {
            return Err(PyValueError::new_err("the items are outside the memory"));
        }
        Ok(PackedList { memory, start, step, count })
    }

    fn __len__(&self) -> usize {
        self.count
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        at: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = at.cast::<PySlice>() {
            let part = slice.indices(self.count as isize)?;
            let count = part.slicelength;
            let start = match count {
                0 => 0,
                _ => self.start.wrapping_add_signed(part.start * self.step),
            };
            let step = if count == 0 { 1 } else { self.step * part.step };
            let memory = self.memory.clone_ref(py);
            return Ok(Bound::new(py, PackedList { memory, start, step, count })?.into_any());
        }
        let Ok(number) = at.extract::<isize>() else {
            if at.hasattr("__index__")? {
                return Err(PyIndexError::new_err(format!(
                    "there are {} items, got {at}",
                    self.count
                )));
            }
            let kind = type_name(&at.get_type());
            return Err(PyTypeError::new_err(format!(
                "indices must be integers or slices, not {kind}"
            )));
        };
        match self.place(number) {
            Some(place) => self.at(py, place),
            None => {
                Err(PyIndexError::new_err(format!("there are {} items, got {number}", self.count)))
            }
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> PackedIterator {
        PackedIterator { list: slf.unbind(), next: 0 }
    }

    fn __reversed__(&self, py: Python<'_>) -> PyResult<PackedIterator> {
        let (memory, count) = (self.memory.clone_ref(py), self.count);
        let last = count.saturating_sub(1) as isize;
        let start = self.start.wrapping_add_signed(last * self.step);
        let list = Py::new(py, PackedList { memory, start, step: -self.step, count })?;
        Ok(PackedIterator { list, next: 0 })
    }

    fn __contains__(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.find_equal(value, 0, self.count)?.is_some())
    }

    /// The index of the first item equal to this one, from `start` to before `stop`.
    #[pyo3(signature = (value, start=0, stop=None))]
    fn index(
        &self,
        value: &Bound<'_, PyAny>,
        start: isize,
        stop: Option<isize>,
    ) -> PyResult<usize> {
        let limit = |at: isize| {
            let place = if at < 0 { at.saturating_add_unsigned(self.count).max(0) } else { at };
            place.unsigned_abs().min(self.count)
        };
        let found = self.find_equal(value, limit(start), stop.map_or(self.count, limit))?;
        found.ok_or_else(|| {
            PyValueError::new_err(format!("{} is not among the items", shown(value)))
        })
    }

    /// The number of items equal to this one.
    fn count(&self, value: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (mut count, mut from) = (0, 0);
        while let Some(place) = self.find_equal(value, from, self.count)? {
            (count, from) = (count + 1, place + 1);
        }
        Ok(count)
    }

    /// All items, as a list.
    #[pyo3(name = "tolist")]
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for place in 0..self.count {
            list.append(self.at(py, place)?)?;
        }
        Ok(list)
    }

    /// Bytes of the memory, which views of the same items share.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.get().bytes.as_slice().len()
    }

    #[getter(_memory)]
    fn memory(&self, py: Python<'_>) -> Py<PackedMemory> {
        self.memory.clone_ref(py)
    }

    /// The index of the pair with this key, in pairs that are a packed mapping.
    fn _find(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        // Raises if it is no key of any mapping.
        key.hash()?;
        let mut wanted = TaggedValues::default();
        if write_key(&mut wanted, &plain(key)?, 1).is_err() {
            return Ok(None);
        }
        let memory = self.memory.get();
        memory.items.find(memory.bytes.as_slice(), &wanted).map_err(raise)
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let is_equal = if let Ok(other) = other.cast::<PackedList>() {
            let other = other.get();
            let mut is_equal = self.count == other.count;
            if !self.is_same(other) {
                for place in 0..self.count {
                    is_equal = is_equal && self.at(py, place)?.eq(other.at(py, place)?)?;
                    if !is_equal {
                        break;
                    }
                }
            }
            is_equal
        } else if let Ok(other) = other.cast::<PyList>() {
            let mut is_equal = self.count == other.len();
            for place in 0..self.count {
                // The list may have become shorter: comparing calls code of its items.
                is_equal = is_equal
                    && place < other.len()
                    && self
                        .at(py, place)?
                        .rich_compare(other.get_item(place)?, CompareOp::Eq)?
                        .is_truthy()?;
                if !is_equal {
                    break;
                }
            }
            is_equal
        } else {
            return Ok(py.NotImplemented());
        };
        Ok(PyBool::new(py, is_equal).to_owned().into_any().unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shown = (0..self.count.min(SHOWN))
            .map(|place| Ok(shown(&self.at(py, place)?)))
            .collect::<PyResult<Vec<_>>>()?
            .join(", ");
        Ok(match self.count {
            ..=SHOWN => format!("PackedList([{shown}])"),
            count => format!("PackedList([{shown}, ...], {count} items)"),
        })
    }

    fn __reduce__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let list = slf.get();
        let (start, step, count) = (list.start, list.step, list.count);
        let is_whole = list.is_whole();
        let reduce = slf.py().import("feedline.packed")?.getattr("_reduce_list")?;
        reduce.call1((slf, (start, step, count), is_whole))
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }
}

/// Iterates over packed items.
#[pyclass(module = "feedline._native")]
pub(crate) struct PackedIterator {
    list: Py<PackedList>,
    next: usize,
}

#[pymethods]
impl PackedIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let list = self.list.get();
        if self.next >= list.count {
            return Ok(None);
        }
        self.next += 1;
        list.at(py, self.next - 1).map(Some)
    }

    fn __length_hint__(&self) -> usize {
        self.list.get().count - self.next
    }
}
