//! All stores of a process, by the addresses of objects.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{Address, Error, Object, ObjectVersion, OpenedRange, Store, StoreAccess, limits, stop::Stop};

/// A store; or the reason why it can't be reached, with the time of the failure.
type KnownStore = Result<Arc<Store>, (Instant, Error)>;

/// Stores, each made when one of its objects is first requested, which keep their connections.
pub struct Stores {
    /// Environment of the process that reads.
    variables: BTreeMap<String, String>,
    /// Stores by their address.
    known: Mutex<HashMap<String, KnownStore>>,
    stop: Arc<Stop>,
}

impl fmt::Debug for Stores {
    // Without the variables, some of which are secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stores").finish_non_exhaustive()
    }
}

impl Stores {
    /// Creates stores that are reached with these [variables](crate::VARIABLES); an empty one counts as unset.
    pub fn new(mut variables: BTreeMap<String, String>) -> Self {
        variables.retain(|_, value| !value.is_empty());
        Self {
            variables,
            known: Mutex::default(),
            stop: Arc::default(),
        }
    }

    /// Stops all requests; those under way fail immediately. Does not wait: one that is still connecting fails after
    /// its deadline.
    pub fn end(&self) {
        self.stop.set();
        self.known().values().flatten().for_each(|store| store.end());
    }

    /// Returns whether it was ended.
    pub fn is_ended(&self) -> bool {
        self.stop.is_set()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, KnownStore>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present version of the object `s3://BUCKET/KEY`, or of another scheme.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn version(&self, object: &str) -> Result<ObjectVersion, Error> {
        let (bucket, key) = Address::of_object(object)?;
        self.store(&bucket)?.version(&key)
    }

    /// Opens a range of the object `s3://BUCKET/KEY`: see [`Store::open`].
    ///
    /// # Errors
    /// [`Error::Input`] if the address is invalid, or the variables lead to no store; those of [`Store::open`].
    pub fn open(&self, object: &str, offset: u64, length: Option<u64>, mark: Option<u64>) -> Result<OpenedRange, Error> {
        let (bucket, key) = Address::of_object(object)?;
        self.store(&bucket)?.open(&key, offset, length, mark)
    }

    /// Returns the names of the folders directly below `s3://BUCKET/PREFIX`: see [`Store::folders`].
    ///
    /// # Errors
    /// Those of [`Self::open`], and of [`Store::folders`].
    pub fn folders(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let address: Address = prefix.parse()?;
        self.listing(address)?.folders()
    }

    /// Returns all objects below `s3://BUCKET/PREFIX`, each with its version: see [`Store::list`].
    ///
    /// # Errors
    /// Those of [`Self::open`], and of [`Store::list`].
    pub fn list(&self, prefix: &str) -> Result<Vec<(Object, ObjectVersion)>, Error> {
        let address: Address = prefix.parse()?;
        let store = self.listing(address)?;
        let objects = store.list(&|_| {})?;
        let with_version = |object: Object| {
            let version = store.version_of(&object.etag, object.size);
            (object, version)
        };
        Ok(objects.into_iter().map(with_version).collect())
    }

    /// Returns the store of a bucket, which all its objects share.
    fn store(&self, bucket: &Address) -> Result<Arc<Store>, Error> {
        let name = bucket.to_string();
        match self.known().get(&name) {
            Some(Ok(store)) => return Ok(Arc::clone(store)),
            Some(Err((since, error))) if since.elapsed() < limits::FAILURE_KEPT => return Err(error.clone()),
            _ => {}
        }
        // This may read files on a file system that hangs, so no lock is held.
        let made = self.access(bucket).map(|access| Store::new(bucket.clone(), access));
        let mut known = self.known();
        // Another thread may have been faster.
        if let Some(Ok(store)) = known.get(&name) {
            return Ok(Arc::clone(store));
        }
        let found = match made {
            Ok(mut store) => {
                store.stop = Arc::clone(&self.stop);
                if self.stop.is_set() {
                    store.end();
                }
                Ok(Arc::new(store))
            }
            Err(error) => Err((Instant::now(), error)),
        };
        known.insert(name, found.clone());
        found.map_err(|(_, error)| error)
    }

    /// Returns a store for the part below a prefix: it shares connections and lent credentials with its bucket's store.
    fn listing(&self, address: Address) -> Result<Store, Error> {
        Ok(self.store(&address.whole())?.below(address))
    }

    fn access(&self, bucket: &Address) -> Result<StoreAccess, Error> {
        StoreAccess::find(bucket, &|name| self.variables.get(name).cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    fn stores<const N: usize>(variables: [(&str, &str); N]) -> Stores {
        Stores::new(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }

    #[test]
    fn no_secret_is_printed_and_what_is_empty_is_unset() {
        let stores = stores([("AWS_SECRET_ACCESS_KEY", "hidden"), ("AWS_ACCESS_KEY_ID", "")]);
        assert!(!format!("{stores:?}").contains("hidden"));
        let line = stores.version("s3://data/x").unwrap_err().to_string();
        assert!(line.contains("only one of"), "{line}");
    }

    #[test]
    fn after_the_end_nothing_is_tried_again() {
        let stores = stores([
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ("AWS_MAX_ATTEMPTS", "100"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]);
        stores.end();
        let begun = Instant::now();
        stores.version("s3://data/x").unwrap_err();
        // The pauses of a hundred attempts take a quarter of an hour.
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn what_is_being_asked_for_ends_at_once() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let stores = stores([
            ("AWS_ENDPOINT_URL", &endpoint),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]);
        let begun = Instant::now();
        thread::scope(|scope| {
            let asked = scope.spawn(|| stores.version("s3://data/x").unwrap_err().to_string());
            // This connection is never answered.
            let _connection = silent.accept().unwrap();
            stores.end();
            let line = asked.join().unwrap();
            assert_eq!(line, "s3://data/x: was ended before it had been answered");
        });
        assert!(begun.elapsed() < limits::ANSWER_DEADLINE);
        assert!(stores.is_ended());
        let line = stores.version("s3://other/x").unwrap_err().to_string();
        assert!(line.contains("was ended"), "{line}");
    }

    #[test]
    fn a_silent_service_for_credentials_ends_at_once() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = format!("http://{}", silent.local_addr().unwrap());
        let token = tempfile::NamedTempFile::new().unwrap();
        let token = token.path().to_str().unwrap();
        let identity = [
            ("AWS_ENDPOINT_URL_STS", &*service),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", token),
            ("AWS_ROLE_ARN", "role"),
        ];
        let application = [
            ("AZURE_STORAGE_ACCOUNT", "me"),
            ("AZURE_AUTHORITY_HOST", &*service),
            ("AZURE_TENANT_ID", "t"),
            ("AZURE_CLIENT_ID", "c"),
            ("AZURE_CLIENT_SECRET", "s"),
        ];
        for (object, stores) in [("s3://data/x", stores(identity)), ("az://data/x", stores(application))] {
            let begun = Instant::now();
            thread::scope(|scope| {
                let asked = scope.spawn(|| stores.version(object).unwrap_err().to_string());
                let _connection = silent.accept().unwrap();
                stores.end();
                assert_eq!(asked.join().unwrap(), format!("{object}: was ended before it had been answered"));
            });
            assert!(begun.elapsed() < limits::TOKEN_DEADLINE);
        }
    }

    #[test]
    fn why_a_store_can_not_be_reached_is_known_for_a_while_only() {
        let home = tempfile::tempdir().unwrap();
        let stores = stores([("HOME", home.path().to_str().unwrap()), ("AWS_PROFILE", "mine")]);
        let bucket: Address = "s3://data".parse().unwrap();
        let line = || stores.store(&bucket).unwrap_err().to_string();
        assert!(line().contains("there is no profile 'mine'"), "{}", line());
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(
            home.path().join(".aws/credentials"),
            "[mine]\naws_access_key_id = K\naws_secret_access_key = S\n",
        )
        .unwrap();
        let (since, error) = stores.known().remove("s3://data").unwrap().unwrap_err();
        for (since, is_known) in [
            (since + Duration::from_secs(3600), true),
            (since.checked_sub(limits::FAILURE_KEPT).unwrap(), false),
        ] {
            stores.known().insert("s3://data".into(), Err((since, error.clone())));
            assert_eq!(stores.store(&bucket).is_err(), is_known, "{since:?}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let line = stores([]).open("s3://data", 0, None, None).unwrap_err().to_string();
        assert!(line.contains("names no object"), "{line}");
    }
}
