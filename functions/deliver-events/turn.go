package deliverevents

import "sync"

// turn lets one loop run in a process.
type turn struct {
	mu             sync.Mutex
	running, again bool
}

// loop is the one that runs.
type loop struct {
	turn  *turn
	ended bool
}

// begin gives the caller the turn; nil when a loop runs, which will look once more.
func (t *turn) begin() *loop {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running {
		t.again = true
		return nil
	}
	t.running, t.again = true, false
	return &loop{turn: t}
}

// end ends the loop, unless somebody has asked for another look; then it says false, once.
func (l *loop) end() bool {
	l.turn.mu.Lock()
	defer l.turn.mu.Unlock()
	if l.turn.again {
		l.turn.again = false
		return false
	}
	l.turn.running, l.ended = false, true
	return true
}

// leave ends the loop in any case.
func (l *loop) leave() {
	l.turn.mu.Lock()
	defer l.turn.mu.Unlock()
	if !l.ended {
		l.turn.running, l.ended = false, true
	}
}
