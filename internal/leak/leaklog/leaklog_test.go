package leaklog

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
)

// fakeTest is a TB whose test ends when end is called.
type fakeTest struct {
	end    func()
	errors []string
}

func (f *fakeTest) Helper()          {}
func (f *fakeTest) Cleanup(c func()) { f.end = c }
func (f *fakeTest) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

func TestALeakFailsTheTest(t *testing.T) {
	for name, log := range map[string]func(l klog.Logger, v string){
		"message":      func(l klog.Logger, v string) { l.Info("got " + v) },
		"verbose":      func(l klog.Logger, v string) { l.V(10).Info("got " + v) },
		"value":        func(l klog.Logger, v string) { l.Info("got", "it", v) },
		"bytes":        func(l klog.Logger, v string) { l.Info("got", "it", []byte(v)) },
		"nested":       func(l klog.Logger, v string) { l.Info("got", "it", map[string][]byte{"key": []byte(v)}) },
		"struct":       func(l klog.Logger, v string) { l.Info("got", "it", struct{ Password string }{v}) },
		"error":        func(l klog.Logger, v string) { l.Error(errors.New("bad "+v), "failed") },
		"with values":  func(l klog.Logger, v string) { l.WithValues("user", v).Info("got") },
		"with a name":  func(l klog.Logger, v string) { l.WithName(v).Info("got") },
		"error's keys": func(l klog.Logger, v string) { l.Error(nil, "failed", v, 1) },
	} {
		for _, value := range []string{leak.NewValue(), leak.NewToken()} {
			f := &fakeTest{}
			log(New(f, &bytes.Buffer{}), value)
			f.end()
			all := strings.Join(f.errors, "\n")
			if !strings.Contains(all, "the log leaks a ") || !strings.Contains(all, "the log in JSON leaks a ") {
				t.Errorf("%s: found %q", name, f.errors)
			}
		}
	}
}

func TestALogWithoutOneIsFine(t *testing.T) {
	f, text := &fakeTest{}, &bytes.Buffer{}
	New(f, text).WithName("n").WithValues("k", "v").V(9).Info("got", "secret", klog.KRef("shop", "db"))
	f.end()
	if len(f.errors) > 0 || !strings.Contains(text.String(), `"got" logger="n" k="v" secret="shop/db"`) {
		t.Errorf("found %q in %s", f.errors, text)
	}
}

func TestAKeyTwiceFailsTheTest(t *testing.T) {
	for name, log := range map[string]func(l klog.Logger){
		"in one call":   func(l klog.Logger) { l.Info("got", "id", 1, "pod", klog.KRef("shop", "web"), "id", 2) },
		"of the logger": func(l klog.Logger) { l.WithValues("id", 1).Info("got", "id", 1) },
	} {
		f := &fakeTest{}
		log(New(f, &bytes.Buffer{}))
		f.end()
		if len(f.errors) != 1 || !strings.Contains(f.errors[0], `the key "id" appears twice`) {
			t.Errorf("%s: found %q", name, f.errors)
		}
	}
}
