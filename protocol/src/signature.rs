//! Ed25519 signatures over canonical manifests (sections 6 and 8). Pure: keys come in as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey};
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use serde::Serialize;

use crate::canonical::{canonical, sha256_hex};
use crate::scalar::{Digest, Text};
use crate::shape::Signature;

/// Why a key or a signature cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The private key is not PKCS#8 PEM of an Ed25519 key.
    #[error("not an Ed25519 private key in PKCS#8 PEM")]
    PrivateKey,
    /// The public key is not SPKI PEM of an Ed25519 key.
    #[error("not an Ed25519 public key in SPKI PEM")]
    PublicKey,
    /// The signature is not base64 of 64 bytes.
    #[error("not an Ed25519 signature in base64")]
    Encoding,
    /// The signature is not of this key over this value.
    #[error("the signature does not fit the key and what is signed")]
    Mismatch,
    /// The value cannot be written as JSON, or a text does not fit its limits.
    #[error("the value cannot be signed")]
    Value,
}

/// A private key. Never printed.
pub struct PrivateKey(SigningKey);

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// A key from 32 random bytes.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Reads PKCS#8 PEM.
    ///
    /// # Errors
    /// When it is no such key.
    pub fn from_pem(pem: &str) -> Result<Self, SignatureError> {
        SigningKey::from_pkcs8_pem(pem).map(Self).map_err(|_| SignatureError::PrivateKey)
    }

    /// Writes PKCS#8 PEM. What comes back is a secret.
    ///
    /// # Errors
    /// When the key cannot be encoded.
    pub fn to_pem(&self) -> Result<String, SignatureError> {
        // Version 1, without the public key: what `openssl genpkey` writes and older versions of it read.
        let bytes = ed25519_dalek::pkcs8::KeypairBytes { secret_key: self.0.to_bytes(), public_key: None };
        let pem = bytes.to_pkcs8_pem(Default::default()).map_err(|_| SignatureError::PrivateKey)?;
        Ok(pem.as_str().to_owned())
    }

    /// The public key as SPKI PEM.
    ///
    /// # Errors
    /// When the key cannot be encoded.
    pub fn public_pem(&self) -> Result<String, SignatureError> {
        self.0.verifying_key().to_public_key_pem(Default::default()).map_err(|_| SignatureError::PublicKey)
    }

    /// Signs the canonical JSON of a value.
    ///
    /// # Errors
    /// When the value cannot be written as JSON.
    pub fn sign<T: Serialize>(&self, value: &T) -> Result<Signature, SignatureError> {
        let value = serde_json::to_value(value).map_err(|_| SignatureError::Value)?;
        let signature = self.0.sign(canonical(&value).as_bytes());
        Ok(Signature {
            public_key: Text::new(self.public_pem()?).map_err(|_| SignatureError::Value)?,
            signature: Text::new(STANDARD.encode(signature.to_bytes())).map_err(|_| SignatureError::Value)?,
        })
    }
}

fn public_key(pem: &str) -> Result<VerifyingKey, SignatureError> {
    VerifyingKey::from_public_key_pem(pem).map_err(|_| SignatureError::PublicKey)
}

/// Names a public key whatever its PEM looks like: the hash of its 32 bytes.
///
/// # Errors
/// When it is no Ed25519 key.
pub fn fingerprint(pem: &str) -> Result<Digest, SignatureError> {
    Digest::new(sha256_hex(public_key(pem)?.as_bytes())).map_err(|_| SignatureError::PublicKey)
}

/// Checks a signature over the canonical JSON of a value. Weak keys and signatures that another key could share are
/// refused.
///
/// # Errors
/// When anything about it does not fit.
pub fn verify<T: Serialize>(value: &T, signature: &Signature) -> Result<(), SignatureError> {
    let key = public_key(&signature.public_key)?;
    let bytes = STANDARD.decode(signature.signature.as_bytes()).map_err(|_| SignatureError::Encoding)?;
    let bytes: [u8; 64] = bytes.try_into().map_err(|_| SignatureError::Encoding)?;
    let value = serde_json::to_value(value).map_err(|_| SignatureError::Value)?;
    let signature = ed25519_dalek::Signature::from_bytes(&bytes);
    key.verify_strict(canonical(&value).as_bytes(), &signature).map_err(|_| SignatureError::Mismatch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_signature_is_for_exactly_what_was_signed() {
        let key = PrivateKey::from_seed(&[7; 32]);
        let value = json!({"b": 1, "a": [true, null]});
        let signature = key.sign(&value).unwrap();
        // The order of keys is not part of a value.
        assert_eq!(verify(&json!({"a": [true, null], "b": 1}), &signature), Ok(()));
        assert_eq!(verify(&json!({"a": [true, null], "b": 2}), &signature), Err(SignatureError::Mismatch));
        let other = PrivateKey::from_seed(&[8; 32]).sign(&value).unwrap();
        let mixed = Signature { public_key: other.public_key, signature: signature.signature };
        assert_eq!(verify(&value, &mixed), Err(SignatureError::Mismatch));
    }

    #[test]
    fn keys_survive_their_text() {
        let key = PrivateKey::from_seed(&[9; 32]);
        let pem = key.to_pem().unwrap();
        assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----"));
        let again = PrivateKey::from_pem(&pem).unwrap();
        assert_eq!(again.public_pem(), key.public_pem());
        let public = key.public_pem().unwrap();
        assert_eq!(fingerprint(&public), fingerprint(&public.replace('\n', "\r\n")));
        assert!(
            PrivateKey::from_pem("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").is_err()
        );
        assert!(fingerprint(&pem).is_err());
        assert_eq!(format!("{key:?}"), "PrivateKey");
    }
}
