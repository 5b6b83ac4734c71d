//! A look at a program's objects: of which other objects they consist, by their identities. Whether anything was
//! exchanged since is told in microseconds, where to describe a state again takes milliseconds in which training
//! stands still.

use pyo3::{
    PyTraverseError, PyVisit,
    prelude::*,
    types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType, PyWeakrefMethods, PyWeakrefReference},
};

/// Containers in containers, at most: what goes deeper, or round in a circle, can't be looked at.
const DEPTH_MAX: usize = 64;
/// Identities and lengths, at most: a longer list is sooner written down than kept.
const SEEN_MAX: usize = 1 << 20;

/// The objects reached from a root, in a fixed order. Keeps no tensor and no container alive.
#[pyclass(frozen)]
pub(crate) struct Look {
    rules: Rules,
    /// Identities of types and leaves, and lengths.
    seen: Vec<usize>,
    /// Objects that can be kept alive, in order, so that no other object can take their identity meanwhile.
    kept: Vec<Py<PyAny>>,
    /// Weak references to all other objects, with the positions of their identities.
    alive: Vec<(usize, Py<PyWeakrefReference>)>,
}

/// Rules by which objects are visited.
struct Rules {
    /// Types of leaves that may go at any time.
    tensors: Vec<Py<PyType>>,
    /// Attributes of theirs that count as well.
    of_tensors: Vec<Py<PyString>>,
    /// Names in the `__dict__` of any other object whose values are visited.
    of_objects: Vec<Py<PyString>>,
    /// Types of values that can't become others and still be the same object.
    unchanging: Vec<usize>,
    /// A dictionary whose order is that of a plain one.
    default_dict: Py<PyAny>,
}

#[pymethods]
impl Look {
    /// Looks at `root`: dictionaries, lists, tuples, and what they consist of. Tensors are leaves of these very
    /// types, of which `of_tensors` are looked at as well; of other objects what `of_objects` names in their
    /// `__dict__`. `None` where there is anything else.
    #[staticmethod]
    fn at(
        root: &Bound<'_, PyAny>,
        tensors: Vec<Py<PyType>>,
        of_tensors: Vec<Py<PyString>>,
        of_objects: Vec<Py<PyString>>,
    ) -> PyResult<Option<Self>> {
        let mut look = Self {
            rules: Rules::new(root.py(), tensors, of_tensors, of_objects)?,
            seen: Vec::new(),
            kept: Vec::new(),
            alive: Vec::new(),
        };
        let mut found = FoundChange::default();
        let is_known = look.rules.visit(root, 0, &mut found)?;
        (look.seen, look.kept, look.alive) = (found.seen, found.kept, found.alive);
        Ok(is_known.then_some(look))
    }

    /// Visits the kept objects, which may keep this object alive: a class that was made in a function whose variables
    /// hold it, for example.
    #[expect(clippy::needless_pass_by_value, reason = "the signature is the interpreter's")]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Rules {
            tensors,
            of_tensors,
            of_objects,
            default_dict,
            unchanging: _,
        } = &self.rules;
        self.kept.iter().try_for_each(|kept| visit.call(kept))?;
        self.alive.iter().try_for_each(|(_, weak)| visit.call(weak))?;
        tensors.iter().try_for_each(|kind| visit.call(kind))?;
        of_tensors.iter().chain(of_objects).try_for_each(|name| visit.call(name))?;
        visit.call(default_dict)
    }

    /// Returns whether `root` reaches the same objects: identical leaves, equal text, containers of equal structure.
    fn is_same(&self, root: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut again = Again {
            look: self,
            at: 0,
            kept: 0,
        };
        if !self.rules.visit(root, 0, &mut again)? || again.at != self.seen.len() {
            return Ok(false);
        }
        let py = root.py();
        // One that was freed may have left its identity to another.
        let is_alive =
            |(at, weak): &(usize, Py<PyWeakrefReference>)| weak.bind(py).upgrade().is_some_and(|one| identity(&one) == self.seen[*at]);
        Ok(self.alive.iter().all(is_alive))
    }
}

impl Rules {
    fn new(py: Python<'_>, tensors: Vec<Py<PyType>>, of_tensors: Vec<Py<PyString>>, of_objects: Vec<Py<PyString>>) -> PyResult<Self> {
        let unchanging = vec![
            identity(&py.None().bind(py).get_type()),
            identity(&py.get_type::<PyBool>()),
            identity(&py.get_type::<PyInt>()),
            identity(&py.get_type::<PyFloat>()),
            identity(&py.get_type::<PyString>()),
            identity(&py.get_type::<PyBytes>()),
            identity(&py.get_type::<PyType>()),
        ];
        Ok(Self {
            tensors,
            of_tensors,
            of_objects,
            unchanging,
            default_dict: py.import("collections")?.getattr("defaultdict")?.unbind(),
        })
    }

    #[inline]
    fn is_tensor(&self, kind: usize) -> bool {
        self.tensors.iter().any(|one| one.as_ptr() as usize == kind)
    }

    /// Visits everything that is reached. Returns whether all of it could be visited and `eye` accepted it.
    fn visit(&self, object: &Bound<'_, PyAny>, depth: usize, eye: &mut impl Eye) -> PyResult<bool> {
        let kind = object.get_type_ptr() as usize;
        if self.unchanging.contains(&kind) {
            return eye.stays(object);
        }
        if depth > DEPTH_MAX {
            return Ok(false);
        }
        if self.is_tensor(kind) {
            return Ok(eye.may_go(object)? && self.visit_attributes(object, depth, eye)?);
        }
        // Whatever is a subclass may have an order, or items, of its own.
        if object.is_exact_instance_of::<PyDict>() || kind == self.default_dict.as_ptr() as usize {
            let items = object.cast::<PyDict>()?;
            return Ok(begins(object, items.len(), eye)? && self.visit_items(items, depth, eye)?);
        }
        if let Ok(list) = object.cast_exact::<PyList>() {
            return Ok(begins(object, list.len(), eye)? && self.visit_each(list.iter(), depth, eye)?);
        }
        if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            return Ok(begins(object, tuple.len(), eye)? && self.visit_each(tuple.iter(), depth, eye)?);
        }
        self.visit_object(object, depth, eye)
    }

    fn visit_attributes(&self, tensor: &Bound<'_, PyAny>, depth: usize, eye: &mut impl Eye) -> PyResult<bool> {
        for name in &self.of_tensors {
            let value = tensor.getattr(name.bind(tensor.py()))?;
            // Of a gradient it is not asked what its own one is.
            let is_tensor = self.is_tensor(value.get_type_ptr() as usize);
            if !(if is_tensor {
                eye.may_go(&value)?
            } else {
                self.visit(&value, depth + 1, eye)?
            }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn visit_items(&self, items: &Bound<'_, PyDict>, depth: usize, eye: &mut impl Eye) -> PyResult<bool> {
        // Most dictionaries of modules are empty. Of a copy: what looks at a value may run Python, which may change
        // the dictionary.
        if items.is_empty() {
            return Ok(true);
        }
        for (key, value) in items.iter().collect::<Vec<_>>() {
            if !self.visit(&key, depth + 1, eye)? || !self.visit(&value, depth + 1, eye)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn visit_each<'py>(&self, items: impl Iterator<Item = Bound<'py, PyAny>>, depth: usize, eye: &mut impl Eye) -> PyResult<bool> {
        for item in items {
            if !self.visit(&item, depth + 1, eye)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn visit_object(&self, object: &Bound<'_, PyAny>, depth: usize, eye: &mut impl Eye) -> PyResult<bool> {
        if self.of_objects.is_empty() {
            return Ok(false);
        }
        let py = object.py();
        let Some(attributes) = object.getattr_opt(pyo3::intern!(py, "__dict__"))? else {
            return Ok(false);
        };
        let Ok(attributes) = attributes.cast_exact::<PyDict>() else {
            return Ok(false);
        };
        let mut named = 0;
        // Two of a kind with the same in them are two all the same.
        if !begins(object, 0, eye)? || !eye.may_go(object)? {
            return Ok(false);
        }
        for (number, name) in self.of_objects.iter().enumerate() {
            let Some(value) = attributes.get_item(name.bind(py))? else {
                continue;
            };
            if !eye.counts(number) || !self.visit(&value, depth + 1, eye)? {
                return Ok(false);
            }
            named += 1;
        }
        Ok(named > 0 && eye.counts(named))
    }
}

/// Recorder or comparator of the objects reached. A method returns false if an object differs.
trait Eye {
    /// Something that can be kept.
    fn stays(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool>;
    /// A tensor, or an object.
    fn may_go(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool>;
    /// A number.
    fn counts(&mut self, number: usize) -> bool;
}

/// The first time.
#[derive(Default)]
struct FoundChange {
    seen: Vec<usize>,
    kept: Vec<Py<PyAny>>,
    alive: Vec<(usize, Py<PyWeakrefReference>)>,
}

impl Eye for FoundChange {
    fn stays(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.seen.push(identity(object));
        self.kept.push(object.clone().unbind());
        Ok(self.seen.len() <= SEEN_MAX)
    }

    fn may_go(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        // Some objects can't be referred to so.
        let Ok(weak) = PyWeakrefReference::new(object) else {
            return Ok(false);
        };
        self.alive.push((self.seen.len(), weak.unbind()));
        self.seen.push(identity(object));
        Ok(self.seen.len() <= SEEN_MAX)
    }

    fn counts(&mut self, number: usize) -> bool {
        self.seen.push(number);
        true
    }
}

/// Every time after that.
struct Again<'a> {
    look: &'a Look,
    at: usize,
    kept: usize,
}

impl Again<'_> {
    fn is(&mut self, word: usize) -> bool {
        let was = self.look.seen.get(self.at) == Some(&word);
        self.at += 1;
        was
    }
}

impl Eye for Again<'_> {
    fn stays(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        let kept = self.look.kept.get(self.kept);
        self.kept += 1;
        if self.is(identity(object)) {
            return Ok(true);
        }
        // Names are often put together again each time.
        let (Some(kept), Ok(text)) = (kept, object.cast_exact::<PyString>()) else {
            return Ok(false);
        };
        // At the same place in both orders, or they differed before.
        let kept = kept.bind(object.py());
        let stood_here = self.look.seen.get(self.at - 1) == Some(&identity(kept));
        Ok(stood_here && kept.is_exact_instance_of::<PyString>() && text.as_any().eq(kept)?)
    }

    fn may_go(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.is(identity(object)))
    }

    fn counts(&mut self, number: usize) -> bool {
        self.is(number)
    }
}

/// A container of a type and a length.
fn begins(container: &Bound<'_, PyAny>, length: usize, eye: &mut impl Eye) -> PyResult<bool> {
    Ok(eye.stays(container.get_type().as_any())? && eye.counts(length))
}

fn identity(object: &Bound<'_, PyAny>) -> usize {
    object.as_ptr() as usize
}
