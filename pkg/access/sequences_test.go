package access

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// steps are the events of a sequence: somebody asks while the API server says yes, no or nothing, or time passes.
var steps = []string{"publish:yes", "publish:no", "publish:away", "mounted:yes", "mounted:no", "mounted:away", "6s", "40s"}

// model returns what a publish and a mounted volume get, by the rules alone.
type model struct {
	now time.Duration
	// server is the API server's answer.
	server string
	// last is the last answer, or "", and at is when it came. firstNo is when the no came that may be confirmed, or -1. refused means that
	// one was confirmed.
	last    string
	at      time.Duration
	firstNo time.Duration
	refused bool
	// failed means that the last question was not answered. kept means that a mounted volume asks.
	failed, kept bool
}

func (m *model) ask() {
	if m.failed = m.server == "away"; m.failed {
		m.firstNo = -1
		return
	}
	m.last, m.at = m.server, m.now
	switch {
	case m.last == "yes":
		m.refused, m.firstNo = false, -1
	case m.refused:
	case m.firstNo < 0:
		m.firstNo = m.now
	case m.now-m.firstNo >= refusalTime:
		m.refused, m.firstNo = true, -1
	}
}

// pass lets time pass, including the moment at which a no must be confirmed.
func (m *model) pass(d time.Duration) {
	if due := m.firstNo + refusalTime; m.kept && m.firstNo >= 0 && due > m.now && due <= m.now+d {
		end := m.now + d
		m.now = due
		m.ask()
		m.now = end
		return
	}
	m.now += d
}

// publish returns a yes of the last five seconds, or the present answer.
func (m *model) publish() Verdict {
	if m.last == "yes" && m.now-m.at < admitAge {
		return Allowed
	}
	m.ask()
	return map[string]Verdict{"yes": Allowed, "no": Refused, "away": Unknown}[m.server]
}

// mounted returns a yes up to testAge old, or the newest answer. Two times no, five seconds apart, is a refusal until a yes.
func (m *model) mounted() Verdict {
	m.kept = true
	unconfirmed := m.last == "no" && !m.refused
	if m.last == "" || m.now-m.at >= testAge || unconfirmed && (m.firstNo < 0 || m.now-m.firstNo >= refusalTime) {
		m.ask()
	}
	switch {
	case m.refused:
		return Refused
	case m.last == "no":
		return Suspected
	case m.last == "", m.failed && m.now-m.at >= testAge:
		return Unknown
	}
	return Allowed
}

// TestSequences compares with the model, after each sequence of four answers, failures and waits, what a publish and a mounted volume get
// while nothing is answered. New credentials come all the time, so no question waits for a retry.
func TestSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, []string{"get"}) // without Run, nothing is forgotten
		defer e.Close()
		for n := range len(steps) * len(steps) * len(steps) * len(steps) {
			for _, last := range []string{"publish:away", "mounted:away"} {
				var sequence []string
				for rest := n; len(sequence) < 4; rest /= len(steps) {
					sequence = append(sequence, steps[rest%len(steps)])
				}
				if e.follow(fmt.Sprint(n, last), append(sequence, last)); t.Failed() {
					return
				}
			}
		}
	})
}

// follow does the steps of a sequence for an unknown service account.
func (e *env) follow(account string, sequence []string) {
	pod := web
	pod.ServiceAccount = account
	m := &model{firstNo: -1}
	for i, step := range sequence {
		if got, want := e.step(m, pod, step); got != want {
			e.t.Errorf("after %s: verdict %d, want %d", strings.Join(sequence[:i+1], ", "), got, want)
		}
	}
	e.Access.mu.Lock()
	defer e.Access.mu.Unlock()
	clear(e.answers)
}

// step does a step, and returns the answers of Access and of the model.
func (e *env) step(m *model, pod volume.Pod, step string) (got, want Verdict) {
	who, says, asks := strings.Cut(step, ":")
	if !asks {
		d, err := time.ParseDuration(step)
		if err != nil {
			e.t.Fatal(err)
		}
		m.pass(d)
		after(d)
		return 0, 0
	}
	m.server = says
	e.api.set(func() {
		e.api.yes, e.api.err = says == "yes", nil
		if says == "away" {
			e.api.err = errAway
		}
	})
	began := time.Now()
	ask := func() (Verdict, error) { return e.Admit(pod, db, began) }
	if who == "publish" {
		want = m.publish()
	} else {
		ask = func() (Verdict, error) { return e.Recheck(pod, db, true) }
		want = m.mounted()
	}
	e.OnNewCredential(pod.Account())
	_, _ = ask()
	synctest.Wait()
	got, err := ask()
	if (got == Unknown) && !errors.Is(err, errAway) {
		e.t.Errorf("unknown without its reason: %v", err)
	}
	m.pass(time.Millisecond)
	after(time.Millisecond)
	return got, want
}
