//! TLS to the server, in the modes of PostgreSQL's own clients.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::OpenError;

/// What a URL says about TLS.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub(crate) mode: Mode,
    /// The file with the certificates that are trusted; otherwise those of the system are.
    pub(crate) roots: Option<PathBuf>,
}

/// The values of `sslmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    Disable,
    /// With TLS if the server has it. Somebody in between can take it away.
    #[default]
    Prefer,
    /// With TLS, to whatever server answers.
    Require,
    /// To a server that a trusted authority knows.
    VerifyCa,
    /// To that very host.
    VerifyFull,
}

impl Mode {
    pub(crate) const NAMES: [(&'static str, Self); 5] = [
        ("disable", Self::Disable),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];

    pub(crate) fn of(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, mode)| *mode)
    }

    pub(crate) fn in_client(self) -> SslMode {
        match self {
            Self::Disable => SslMode::Disable,
            Self::Prefer => SslMode::Prefer,
            Self::Require | Self::VerifyCa | Self::VerifyFull => SslMode::Require,
        }
    }
}

/// How much of the certificate of a server is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Nothing,
    Authority,
    Host,
}

impl Wish {
    fn check(&self) -> Check {
        match self.mode {
            Mode::VerifyFull => Check::Host,
            Mode::VerifyCa => Check::Authority,
            // As PostgreSQL's own clients do: a file of certificates is there to be looked at.
            Mode::Require if self.roots.is_some() => Check::Authority,
            Mode::Disable | Mode::Prefer | Mode::Require => Check::Nothing,
        }
    }

    /// Returns what makes connections with TLS.
    pub(crate) fn connector(&self) -> Result<MakeRustlsConnect, OpenError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authority = match self.check() {
            Check::Nothing => None,
            Check::Authority | Check::Host => {
                let roots = Arc::new(self.trusted()?);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
                Some(verifier.build().map_err(|error| unusable(format!("{error}")))?)
            }
        };
        let verifier =
            Verifier { authority, checks_host: self.check() == Check::Host, provider: Arc::clone(&provider) };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(format!("{error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }

    fn trusted(&self) -> Result<RootCertStore, OpenError> {
        let mut roots = RootCertStore::empty();
        let Some(path) = &self.roots else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            return if roots.is_empty() {
                Err(unusable("the system trusts no certificate"))
            } else {
                Ok(roots)
            };
        };
        let unreadable = |error: &dyn std::fmt::Display| unusable(format!("sslrootcert {path:?}: {error}"));
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unreadable(&error))?;
            roots.add(certificate).map_err(|error| unreadable(&error))?;
        }
        if roots.is_empty() { Err(unreadable(&"it has no certificate")) } else { Ok(roots) }
    }
}

fn unusable(what: impl Into<String>) -> OpenError {
    OpenError::Tls { what: what.into() }
}

/// Checks as much of a certificate as the mode wants. Signatures are checked in every mode.
#[derive(Debug)]
struct Verifier {
    authority: Option<Arc<WebPkiServerVerifier>>,
    checks_host: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        let verified =
            authority.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The chain was found to be right before the name is compared.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_host => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
