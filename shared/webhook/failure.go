package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// noAnswer says in our words why no answer came. The cause's own text may quote the URL or what the receiver sent, and
// is dropped.
func noAnswer(err error) error {
	var timeout net.Error
	var dns *net.DNSError
	switch {
	case errors.Is(err, errForbidden):
		return apperr.New(apperr.Forbidden, "the host's address is not allowed: "+
			"it is not public, or it is one for plain http that the operator has not allowed")
	case errors.As(err, &dns) && dns.IsNotFound:
		return apperr.New(apperr.Unavailable, "the host's name is not known")
	case errors.As(err, &dns) && !dns.IsTimeout:
		return apperr.New(apperr.Unavailable, "the host's name cannot be looked up")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return apperr.New(apperr.Timeout, "the receiver did not answer in time")
	case errors.Is(err, syscall.ECONNREFUSED):
		return apperr.New(apperr.Unavailable, "the connection was refused")
	case isTLS(err):
		return apperr.New(apperr.Unavailable, "the receiver offers no TLS with a certificate that is trusted")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err,
		syscall.EPIPE):
		return apperr.New(apperr.Unavailable, "the receiver closed the connection without an answer")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return apperr.New(apperr.Unavailable, "the receiver's host cannot be reached: no route")
	}
	return apperr.New(apperr.BadGateway, "the receiver gave no answer that makes sense")
}

func isTLS(err error) bool {
	if errors.Is(err, http.ErrSchemeMismatch) || strings.Contains(err.Error(), "tls: ") {
		return true
	}
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	return certificate || record || authority
}
