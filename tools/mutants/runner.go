package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// workers is how many breaks are tried at a time: tests that mostly compute have a processor each.
const workers = 2

// runner tries breaks. Its methods are safe for concurrent use, but for tryAll.
type runner struct {
	// root is the checkout, work a directory for what is built.
	root, work string
	// timeout is how long the tests of a package may take.
	timeout time.Duration
	out     io.Writer

	mu    sync.Mutex
	built int
}

// outcome is what came of a run of a package's tests.
type outcome struct {
	// noticed says that they failed, by what it was noticed, and timedOut that they did not end.
	noticed, timedOut bool
	by                string
	took              time.Duration
}

// tryAll runs the tests of each package without a break, and then with one break after another. The
// error says how many went unnoticed, or could not be tried.
func (r *runner) tryAll(ctx context.Context, breaks []change) error {
	begun := time.Now()
	var packages []string
	for _, c := range breaks {
		if !slices.Contains(packages, c.Package) {
			packages = append(packages, c.Package)
		}
	}
	red := make(map[string]bool)
	r.inTurn(ctx, len(packages), func(i int) {
		if why := r.unbroken(ctx, packages[i]); why != "" {
			r.mu.Lock()
			red[packages[i]] = true
			r.mu.Unlock()
			r.say("FAIL  %s: without a break: %s", packages[i], why)
		}
	})
	var noticed, timedOut int
	r.inTurn(ctx, len(breaks), func(i int) {
		c := &breaks[i]
		if red[c.Package] {
			r.say("FAIL  %s: %s: not tried: the package's tests fail without it", path.Base(c.Package), c.Name)
			return
		}
		o, err := r.try(ctx, c)
		switch {
		case err != nil:
			r.say("FAIL  %s: %s: %v", path.Base(c.Package), c.Name, err)
			return
		case !o.noticed:
			r.say("FAIL  %s: %s: the tests stay green (%.1f s)", path.Base(c.Package), c.Name, o.took.Seconds())
			return
		}
		r.say("ok    %s: %s: noticed by %s (%.1f s)", path.Base(c.Package), c.Name, o.by, o.took.Seconds())
		r.mu.Lock()
		defer r.mu.Unlock()
		noticed++
		if o.timedOut {
			timedOut++
		}
	})
	r.say("%d of %d breaks were noticed, %d of them by a timeout, in %.0f s", noticed, len(breaks), timedOut, time.Since(begun).Seconds())
	if noticed < len(breaks) {
		return fmt.Errorf("%d of %d breaks were not noticed or could not be tried", len(breaks)-noticed, len(breaks))
	}
	return nil
}

// inTurn calls do with the numbers below n, for a few at a time, until the context ends.
func (r *runner) inTurn(ctx context.Context, n int, do func(int)) {
	numbers := make(chan int)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := range numbers {
				if ctx.Err() == nil {
					do(i)
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	all.Wait()
}

func (r *runner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, format+"\n", args...)
}

// unbroken says why a package's tests can't tell anything, "" if they can.
func (r *runner) unbroken(ctx context.Context, pkg string) string {
	binary, err := r.build(ctx, pkg, nil)
	if err != nil {
		return err.Error()
	}
	o, output, err := r.test(ctx, pkg, binary)
	switch {
	case err != nil:
		return err.Error()
	case o.noticed:
		return fmt.Sprintf("the tests fail: %s\n%s", o.by, tail(output))
	}
	return ""
}

// try runs a package's tests with a break.
func (r *runner) try(ctx context.Context, c *change) (outcome, error) {
	text, err := c.apply(r.root)
	if err != nil {
		return outcome{}, err
	}
	binary, err := r.build(ctx, c.Package, map[string]string{c.File: text})
	if err != nil {
		return outcome{}, err
	}
	o, _, err := r.test(ctx, c.Package, binary)
	return o, err
}

// build builds a package's tests, with other texts in the place of some files.
func (r *runner) build(ctx context.Context, pkg string, texts map[string]string) (binary string, err error) {
	r.mu.Lock()
	r.built++
	dir := filepath.Join(r.work, fmt.Sprint(r.built))
	r.mu.Unlock()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range texts {
		broken := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[filepath.Join(r.root, file)] = broken
	}
	content, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, content, 0o600); err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-buildvcs=false", "-vet=off", "-overlay", list, "-o", binary, pkg) //nolint:gosec // From the tables.
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not compile: %w\n%s", err, out)
	}
	return binary, nil
}

// failedTest is how a test's failure begins, and timeout what Go says at the end of a test's time.
var (
	failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	timeout    = regexp.MustCompile(`(?m)^panic: test timed out after .*\n(?:\s*running tests:\s+(\S+))?`)
)

// test runs a test binary, removes it, and says what came of it.
func (r *runner) test(ctx context.Context, pkg, binary string) (o outcome, output string, err error) {
	defer os.RemoveAll(filepath.Dir(binary))
	dir := filepath.Join(r.root, pkg)
	args := []string{"-test.failfast", "-test.timeout=" + r.timeout.String()}
	bubbled, err := usesFakeTime(dir)
	if err != nil {
		return o, "", err
	}
	if bubbled {
		args = append(args, "-test.cpu=1") // as make test-unit does
	}
	// The tests have a while to end by themselves.
	limited, cancel := context.WithTimeout(ctx, r.timeout+time.Minute)
	defer cancel()
	begun := time.Now()
	status, output, err := execute(limited, dir, binary, args...)
	o = outcome{noticed: status != 0, took: time.Since(begun)}
	failed, late := failedTest.FindStringSubmatch(output), timeout.FindStringSubmatch(output)
	switch {
	case ctx.Err() != nil:
		return o, output, ctx.Err()
	case limited.Err() != nil:
		o.noticed, o.timedOut, o.by, err = true, true, "a timeout: the tests did not end", nil
	case late != nil:
		o.timedOut, o.by = true, strings.TrimSpace("a timeout in "+late[1])
	case failed != nil:
		o.by = failed[1]
	default:
		o.by = fmt.Sprintf("exit status %d, without a failed test", status)
	}
	return o, output, err
}

// usesFakeTime says whether tests of a package do.
func usesFakeTime(dir string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return false, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return false, err
		}
		if strings.Contains(string(text), `"testing/synctest"`) {
			return true, nil
		}
	}
	return false, nil
}

// tail returns the end of a long output.
func tail(output string) string {
	const most = 4 << 10
	return output[max(0, len(output)-most):]
}
