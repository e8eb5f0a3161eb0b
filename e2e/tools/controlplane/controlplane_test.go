package controlplane

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/gobuild"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// binaries builds what the other tests of the repository also use, in their cache.
func binaries(t *testing.T) Binaries {
	t.Helper()
	cache, err := gobuild.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Build(t.Context(), BuildOptions{ModuleDir: "../../node-image/kubernetes", CacheDir: cache, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func start(t *testing.T) *ControlPlane {
	t.Helper()
	c, err := Start(t.Context(), Options{Binaries: binaries(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func createConfigMap(t *testing.T, c *ControlPlane, name string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Client().CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestControlPlane uses one for all that can be seen of it while it lives, and then its end.
func TestControlPlane(t *testing.T) {
	c := start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *ControlPlane)
	}{
		{"counts watches and requests", countsWatchesAndRequests},
		{"a kubeconfig of an account has no rights of its own", kubeconfigHasNoRights},
		{"attach", attaches},
		{"an outage keeps address and data", outageKeepsAddressAndData},
		{"serves and leaves nothing", servesAndLeavesNothing},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c) })
	}
}

func servesAndLeavesNothing(t *testing.T, c *ControlPlane) {
	info, err := c.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	want, err := requiredVersion(t.Context(), "../../node-image/kubernetes", "go.mod", kubernetesModule)
	if err != nil {
		t.Fatal(err)
	}
	if info.GitVersion != want {
		t.Errorf("server version = %q, want %q", info.GitVersion, want)
	}
	createConfigMap(t, c, "one")

	dir, port := c.Dir(), c.port.number
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory after Stop: %v, want none", err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatalf("the port after Stop: %v", err)
	}
	l.Close()
	if err := c.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func outageKeepsAddressAndData(t *testing.T, c *ControlPlane) {
	createConfigMap(t, c, "kept")
	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := c.Client().CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{}); err == nil {
		t.Fatal("a stopped API server answered")
	}
	if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.port.number)); err == nil {
		l.Close()
		t.Error("somebody else can take the port during the outage")
	}
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}

func kubeconfigHasNoRights(t *testing.T, c *ControlPlane) {
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}
	if _, err := c.Client().CoreV1().ServiceAccounts("default").Create(t.Context(), sa, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := c.ServiceAccountToken(t.Context(), "default", "plain", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.WriteKubeconfig(path, token); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("list secrets = %v, want Forbidden", err)
	}
}

func countsWatchesAndRequests(t *testing.T, c *ControlPlane) {
	before, err := c.OpenWatches(t.Context(), "configmaps")
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Client().CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitWatches(t, c, before+1)
	w.Stop()
	awaitWatches(t, c, before)

	createConfigMap(t, c, "counted")
	requests, err := c.Requests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := requests[Request{Verb: "POST", Resource: "configmaps"}]; n < 1 {
		t.Errorf("POST configmaps = %d, want at least 1", n)
	}
}

func awaitWatches(t *testing.T, c *ControlPlane, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := c.OpenWatches(ctx, "configmaps")
		if err != nil {
			t.Fatal(err)
		}
		if n == want {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("open watches = %d, want %d", n, want)
		}
	}
}

func TestFailedStartTellsWhyAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	c, err := Start(t.Context(), Options{
		Binaries:      binaries(t),
		Dir:           dir,
		APIServerArgs: []string{"--no-such-flag"},
	})
	if err == nil {
		t.Fatal("Start accepted a flag that does not exist; Stop:", c.Stop())
	}
	if !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("the error lacks the log's tail: %v", err)
	}
}

func TestParseSample(t *testing.T) {
	for _, tc := range []struct {
		name, line string
		want       string
		wantErr    bool
	}{
		{name: "labels", line: `m{a="b",c="",d="e f"} 12`, want: "map[a:b c: d:e f] 12"},
		{name: "exponent", line: `m{a="b"} 1.2e+06`, want: "map[a:b] 1200000"},
		{name: "no labels", line: `m 12`, wantErr: true},
		{name: "no number", line: `m{a="b"} x`, wantErr: true},
		{name: "torn label", line: `m{a} 1`, wantErr: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			labels, value, err := parseSample(tc.line)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error = %v, want one: %t", err, tc.wantErr)
			}
			if got := fmt.Sprint(labels, " ", value); err == nil && got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
