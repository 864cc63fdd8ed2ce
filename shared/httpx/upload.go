package httpx

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// A body must come at bodyRate at least, and may fall behind by bodyGrace: a client that sends a byte now and then
// would occupy a request for as long as that may last.
const (
	bodyGrace = 10 * time.Second
	bodyRate  = 1 << 10 // bytes a second
)

// Upload is the body of a request that must have come by some time, at bodyRate at least.
//
// The deadline ends with the body. Afterwards net/http reads the connection to see whether the client hangs up, and a
// deadline that fails that read would cancel this request and every later one on the connection.
type Upload struct {
	io.ReadCloser
	control  *http.ResponseController
	deadline time.Time
	left     time.Duration // to wait for the client until its next byte
	isShort  bool          // left does not grow with what comes

	mu    sync.Mutex // a proxy may still read when the answer is under way
	whole bool       // all of it has been read
	ended bool       // the answer begins, and the connection is net/http's again
}

// ReadBy puts an Upload into the request.
func ReadBy(w http.ResponseWriter, r *http.Request, deadline time.Time) *Upload {
	u := &Upload{
		ReadCloser: r.Body, control: http.NewResponseController(w), deadline: deadline, left: bodyGrace,
	}
	if r.Body == nil || r.Body == http.NoBody {
		u.whole, deadline = true, time.Time{}
	} else {
		r.Body = u
	}
	_ = u.control.SetReadDeadline(deadline)
	return u
}

// Read implements io.Reader. Only the time that it waits counts: the reader may take its own.
func (u *Upload) Read(p []byte) (int, error) {
	began := time.Now()
	u.mu.Lock()
	if !u.ended && !u.whole {
		_ = u.control.SetReadDeadline(earlier(u.deadline, began.Add(u.left)))
	}
	u.mu.Unlock()
	n, err := u.ReadCloser.Read(p)
	if u.left -= time.Since(began); !u.isShort {
		u.left = min(bodyGrace, u.left+time.Duration(n)*time.Second/bodyRate)
	}
	if errors.Is(err, io.EOF) {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.whole = true; !u.ended {
			_ = u.control.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// End is called before the answer. When the body has not been read, the answer closes the connection: otherwise
// net/http would keep it back to read the rest first, however slowly that comes.
func (u *Upload) End(answer http.Header) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended = true; !u.whole {
		answer.Set("Connection", "close")
	}
}

// linger is how long a client may take to notice the answer while it sends.
const linger = 500 * time.Millisecond

// Linger sends the answer, and takes in for a moment what still comes: the end of a connection with something unread
// may lose the answer. net/http does so itself, but not when another goroutine, as a proxy's, is reading the body.
func (u *Upload) Linger() {
	u.mu.Lock()
	whole := u.whole
	u.mu.Unlock()
	if !whole {
		_ = u.control.Flush()
		_ = u.control.SetReadDeadline(time.Now().Add(linger))
		_, _ = io.Copy(io.Discard, u.ReadCloser)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
