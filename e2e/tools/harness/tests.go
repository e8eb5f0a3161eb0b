package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/internal/leak"
)

// TB is what the helpers need of a *testing.T; it lets programs that are no tests use this package without linking
// package testing.
type TB interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

const pollInterval = 10 * time.Millisecond

// Eventually calls f until it returns nil, every 10 ms at first (see Poll), and fails the test with f's last error if
// that does not happen within timeout.
func Eventually(t TB, timeout time.Duration, f func() error) {
	t.Helper()
	if err := Poll(t.Context(), timeout, pollInterval, f); err != nil {
		t.Fatalf("%v", err)
	}
}

// Poll calls f until it returns nil, or returns f's last error when timeout or ctx ends the wait. The interval
// grows to a twentieth of the time that has passed, so that many tests that wait leave the machine to what they wait for.
func Poll(ctx context.Context, timeout, interval time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begin := time.Now()
	for {
		err := f()
		if err == nil {
			return nil
		}
		interval = max(interval, min(time.Since(begin)/20, 250*time.Millisecond))
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return fmt.Errorf("not so within %s: %w", timeout, err)
		}
	}
}

// Run runs one of refvol's commands to its end. It fails the test if the command can't be run, or writes a value or a token.
func Run(t TB, program string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			t.Fatalf("%s %q: %v", program, args, err)
		}
	}
	stdout, stderr = out.String(), errOut.String()
	if err := errors.Join(leak.Check("standard output", stdout), leak.Check("standard error", stderr)); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return stdout, stderr, cmd.ProcessState.ExitCode()
}

// WithoutVariable names the programs, separated by commas, whose tests are skipped if the programs are missing.
const WithoutVariable = "REFVOL_WITHOUT"

// Needs returns the path of a program of this machine. If the program is missing, the test fails and names its Debian package, or is skipped if
// WithoutVariable names the program.
func Needs(t interface {
	TB
	Skipf(format string, args ...any)
}, program, debian string,
) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if slices.Contains(strings.Split(os.Getenv(WithoutVariable), ","), program) {
		t.Skipf("SKIPPED: this machine has no %s (%s names it)", program, WithoutVariable)
	}
	t.Fatalf("this machine has no %s: apt-get install --no-install-recommends %s, or set %s=%s to skip its tests", program, debian, WithoutVariable, program)
	return ""
}

// ClientFor returns a client of config without a rate limit, whose connections end with the test.
func ClientFor(t interface {
	TB
	Cleanup(f func())
}, config *rest.Config,
) kubernetes.Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatalf("make the connections to the API server: %v", err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(transport.Transport) })
	client, err := kubernetes.NewForConfigAndClient(config, transport)
	if err != nil {
		t.Fatalf("make a client of the API server: %v", err)
	}
	return client
}

// PutObject creates or replaces an object with some texts: a Secret if its kind is "secret", else a ConfigMap.
func PutObject(ctx context.Context, c kubernetes.Interface, namespace, kind, name string, data map[string]string) (metav1.Object, error) {
	core, meta := c.CoreV1(), metav1.ObjectMeta{Name: name}
	if kind == "secret" {
		s := &corev1.Secret{ObjectMeta: meta, StringData: data}
		if applied, err := core.Secrets(namespace).Update(ctx, s, metav1.UpdateOptions{}); err == nil {
			return applied, nil
		}
		return core.Secrets(namespace).Create(ctx, s, metav1.CreateOptions{})
	}
	cm := &corev1.ConfigMap{ObjectMeta: meta, Data: data}
	if applied, err := core.ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{}); err == nil {
		return applied, nil
	}
	return core.ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{})
}

const (
	// LongVariable is the name of a variable that asks, set to anything, for the long form of the suites that have
	// one.
	LongVariable = "REFVOL_LONG"
	// seedVariable repeats the choices of an earlier run.
	seedVariable = "REFVOL_SEED"
)

// Scaled returns the size of a suite: short, or long where REFVOL_LONG is set, as `make test-long` does.
func Scaled[T any](short, long T) T {
	if os.Getenv(LongVariable) != "" {
		return long
	}
	return short
}

// Rand returns a source of a suite's choices, which starts from Seed. It is for one goroutine.
func Rand(t TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Seed returns and logs what each Rand of this process starts from, for a suite that needs a source for each of its
// parts. REFVOL_SEED sets it, to repeat a run.
func Seed(t TB) uint64 {
	t.Helper()
	seed := randomSeed()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("%s=%d", seedVariable, seed)
	return seed
}

var randomSeed = sync.OnceValue(rand.Uint64) //nolint:gochecknoglobals // One for the whole run, so that one variable repeats it.

// EnterCommand returns the start of a command line that runs a program in the sandbox of this process, for the person
// who started it.
func EnterCommand() string {
	command := fmt.Sprintf("nsenter --target %s --mount", os.Getenv("REFVOL_SANDBOX_PID"))
	if !initialUsers() {
		command += " --user --preserve-credentials"
	}
	return command
}

// IsRoot says whether this process is root of the machine, not only of a user namespace.
func IsRoot() bool { return os.Geteuid() == 0 && initialUsers() }

// initialUsers tells whether the user namespace is the initial one, or one as good: root is root, and not alone.
func initialUsers() bool {
	data, _ := os.ReadFile("/proc/self/uid_map")
	mapped := strings.Fields(string(data))
	return len(mapped) >= 3 && mapped[0] == "0" && mapped[1] == "0" && mapped[2] != "1"
}
