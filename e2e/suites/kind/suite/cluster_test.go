package suite

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/internal/must"
)

const (
	driver          = "csi.refvol.dev"
	pluginNamespace = "refvol-system"
	pluginLabels    = "app.kubernetes.io/name=refvol-plugin"

	// podTimeout is how long a pod may take to start or to go, on a slow machine.
	podTimeout = 3 * time.Minute
)

// cluster is the cluster under test.
type cluster struct {
	config *rest.Config
	client kubernetes.Interface
}

func connect(t *testing.T) *cluster {
	t.Helper()
	return must.Get(newCluster())(t)
}

// newCluster returns the cluster that KUBECONFIG names.
func newCluster() (*cluster, error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return nil, errors.New("KUBECONFIG must name a cluster with the plugin installed; make e2e makes one")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	// The tests wait for the cluster, never for their own client.
	config.QPS = -1
	// Some pods are strange on purpose, of which the API server warns.
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &cluster{config: config, client: client}, nil
}

// findPlugin returns the pod on a node of the plugin that is installed in a namespace, or nil if there is none.
func (c *cluster) findPlugin(ctx context.Context, namespace, node string) (*corev1.Pod, error) {
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: pluginLabels,
		FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil || len(pods.Items) == 0 {
		return nil, err
	}
	return &pods.Items[0], nil
}

// The directories on a node of the pods, of the sockets of drivers, and of their registrations.
const (
	podsDir          = "/var/lib/kubelet/pods/"
	socketsDir       = "/var/lib/kubelet/plugins/"
	registrationsDir = "/var/lib/kubelet/plugins_registry/"
)

// eventually calls check until it returns nil, and fails the test with its last
// error after the timeout.
func eventually(t *testing.T, timeout time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := poll(ctx, check); err != nil {
		t.Fatalf("%s: not within %s: %v", what, timeout, err)
	}
}

// poll calls check until it returns nil, or ctx ends; then it returns the last error. The pause grows with the time of a check and of the wait,
// because many checks run a command: without it, tests that wait slow down what they wait for.
func poll(ctx context.Context, check func(context.Context) error) error {
	begin := time.Now()
	var last error
	for {
		asked := time.Now()
		err := check(ctx)
		if err == nil {
			return nil
		}
		// What fails because the time is up doesn't say what was wrong until then.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-time.After(max(50*time.Millisecond, 2*time.Since(asked), min(time.Since(begin)/20, time.Second))):
		case <-ctx.Done():
			return last
		}
	}
}
