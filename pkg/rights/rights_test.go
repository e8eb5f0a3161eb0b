package rights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer answers reviews: it allows what is allowed, and fails with err.
type apiServer struct {
	mu      sync.Mutex
	allowed []string
	err     error
	asked   []string
}

func (s *apiServer) Create(_ context.Context, review *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := review.Spec.ResourceAttributes
	what := fmt.Sprint(a.Verb, " ", a.Resource, a.Namespace)
	s.asked = append(s.asked, what)
	review.Status.Allowed = slices.Contains(s.allowed, what)
	return review, s.err
}

// answer has the API server give other answers, and returns how often it was asked until now.
func (s *apiServer) answer(err error, allowed ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.allowed = err, allowed
	return len(s.asked)
}

// running returns a Checker of the account that runs until the test ends, and its log.
func running(t *testing.T, s *apiServer) (*Checker, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
	t.Cleanup(cancel)
	c := NewOfAccount(s, OfObjects("", []string{"list", "watch"}))
	if err := c.Ready(); !errors.Is(err, errUnknown) {
		t.Errorf("at first: %v", err)
	}
	go c.Run(ctx)
	return c, &log
}

// TestRun asks until everything is allowed, tells each problem once, and asks no more then.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{err: errors.New("connection refused")}
		c, log := running(t, s)
		wait := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		wait(10 * time.Minute)
		if err := c.Ready(); err == nil || err.Error() != "ask whether the plugin may list configmaps: connection refused" {
			t.Errorf("got %v", err)
		}
		if n := s.answer(nil, "list configmaps", "watch configmaps", "list secrets"); n < 10 || n > 40 {
			t.Errorf("%d requests in ten minutes", n)
		}
		wait(2 * lastRetry)
		const lacks = "the plugin's account lacks rights in all namespaces that --identity=plugin needs: watch of secrets: grant them, or choose another identity"
		if err := c.Ready(); err == nil || err.Error() != lacks {
			t.Errorf("got %v", err)
		}
		s.answer(nil, "list configmaps", "watch configmaps", "list secrets", "watch secrets")
		wait(2 * lastRetry)
		if err := c.Ready(); err != nil {
			t.Error(err)
		}
		asked := s.answer(errors.New("not any more"))
		wait(10 * time.Minute)
		if n := s.answer(nil); n != asked || c.Ready() != nil {
			t.Error("it asked again")
		}
		if lines := strings.Count(log.String(), "\n"); lines != 3 || strings.Count(log.String(), "Not ready: the plugin can't read as itself") != 2 {
			t.Errorf("logged\n%s", log)
		}
	})
}

// TestRunEnds: a Run that is stopped ends, also in a pause.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		New("x", func(context.Context) error { return errors.New("no") }).Run(ctx)
	})
}

func TestOfObjects(t *testing.T) {
	s := &apiServer{}
	lacking, err := Lacking(t.Context(), s, OfObjects("as:", []string{"get", "watch"}))
	if want := []string{"as:get of configmaps", "as:watch of configmaps", "as:get of secrets", "as:watch of secrets"}; err != nil || !slices.Equal(lacking, want) {
		t.Errorf("got %q, %v, want %q", lacking, err, want)
	}
}
