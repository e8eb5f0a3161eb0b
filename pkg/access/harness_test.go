package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testAge = 30 * time.Second

// apiServer answers questions. mu guards the fields below it.
type apiServer struct {
	mu    sync.Mutex
	yes   bool
	err   error
	delay time.Duration
	// asked are the questions so far, in order.
	asked  []string
	panics bool
}

func (s *apiServer) ask(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string, token volume.Token) (bool, error) {
	s.mu.Lock()
	question := fmt.Sprint(account, " ", verb, " ", ref.Name)
	if token.Reveal() != "" {
		question += " with " + token.Reveal()
	}
	switch m := requests.MetaOf(ctx); {
	case m.For == nil: // it would not wait for the pod's turn
		question += ", for no pod"
	case m.Urgent:
		question += ", urgent"
	}
	s.asked = append(s.asked, question)
	yes, err, delay, panics := s.yes, s.err, s.delay, s.panics
	s.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if panics {
		panic("hunter2")
	}
	return yes, err
}

func (s *apiServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *apiServer) takeAsked() (asked []string) {
	s.set(func() { asked, s.asked = s.asked, nil })
	return asked
}

// env is an Access, its API server, and the number of reported changes.
type env struct {
	*Access
	t       *testing.T
	api     *apiServer
	mu      sync.Mutex
	changes int
}

// inBubble runs a test with fake time, and an Access with these verbs.
func inBubble(t *testing.T, verbs []string, test func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &env{t: t, api: &apiServer{yes: true}}
		changed := func(volume.ServiceAccount, volume.Ref) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.changes++
		}
		var err error
		e.Access, err = New(Options{Reviews: Reviews{Ask: e.api.ask, Verbs: verbs}, MaxAge: testAge, Changed: changed})
		must.Do(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.Run(ctx)
		}()
		test(e)
		cancel()
		<-ended
	})
}

// after lets fake time pass, and everything that happens in it.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (e *env) wantAdmit(began time.Time, want Verdict, wantErr error) {
	e.t.Helper()
	if got, err := e.Admit(web, db, began); got != want || !errors.Is(err, wantErr) {
		e.t.Errorf("Admit: %d, %v, want %d, %v", got, err, want, wantErr)
	}
}

func (e *env) wantRecheck(want Verdict, wantErr error) {
	e.t.Helper()
	if got, err := e.Recheck(web, db, true); got != want || !errors.Is(err, wantErr) {
		e.t.Errorf("Recheck: %d, %v, want %d, %v", got, err, want, wantErr)
	}
}

func (e *env) publish(want Verdict, wantErr error) {
	e.t.Helper()
	began := time.Now()
	e.wantAdmit(began, Unknown, ErrPending)
	synctest.Wait()
	e.wantAdmit(began, want, wantErr)
}

func (e *env) changeCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changes
}

// left returns the number of remembered answers, and the number of pods with questions in flight.
func (e *env) left() (answers, pods int) {
	e.Access.mu.Lock()
	defer e.Access.mu.Unlock()
	return len(e.answers), len(e.pods)
}

// settle asks for a mounted volume until the answer is there.
func (e *env) settle() {
	_, _ = e.Recheck(web, db, true)
	synctest.Wait()
}

func (e *env) wantAsked(want ...string) {
	e.t.Helper()
	synctest.Wait()
	got := e.api.takeAsked()
	if slices.Sort(got); !slices.Equal(got, want) {
		e.t.Errorf("asked %q, want %q", got, want)
	}
}
