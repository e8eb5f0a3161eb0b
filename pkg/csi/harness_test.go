package csi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/publisher"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

const (
	testDriver = "csi.example.org"
	testID     = "csi-0123456789abcdef"
	testTarget = "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/settings/mount"
)

// fakePublisher does what a test has set. Everything else succeeds.
type fakePublisher struct {
	publish   func(ctx context.Context) error
	unpublish func() error
	stats     publisher.Usage
	statsErr  error

	mu sync.Mutex
	// id and target are those of the last call that is not a publish.
	id, target string
}

func (p *fakePublisher) Publish(ctx context.Context, _ binding.Request) error {
	if p.publish == nil {
		return nil
	}
	return p.publish(ctx)
}

func (p *fakePublisher) Unpublish(_ context.Context, id, target string) error {
	p.note(id, target)
	if p.unpublish == nil {
		return nil
	}
	return p.unpublish()
}

func (p *fakePublisher) Stats(_ context.Context, id, target string) (publisher.Usage, error) {
	p.note(id, target)
	return p.stats, p.statsErr
}

func (p *fakePublisher) note(id, target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id, p.target = id, target
}

// testServer is a Server on real sockets, with clients of both.
type testServer struct {
	*testing.T
	*Server
	publisher *fakePublisher
	logs      *leak.Log
	logger    klog.Logger
	// observed has each call and its code.
	observed chan string
	// path and registrationPath are the sockets.
	path, registrationPath string
	node                   csi.NodeClient
	identity               csi.IdentityClient
	registrar              registration.RegistrationClient
	cancel                 context.CancelFunc
	ended                  chan error
}

// newServer returns a server that does not serve yet. change may change its options.
func newServer(t *testing.T, change func(*Options)) *testServer {
	t.Helper()
	dir := t.TempDir()
	s := &testServer{
		T:         t,
		publisher: &fakePublisher{},
		logs:      &leak.Log{},
		observed:  make(chan string, 1000),
		path:      filepath.Join(dir, "csi.sock"),
		ended:     make(chan error, 1),
	}
	s.logger = leaklog.New(t, s.logs)
	opts := Options{
		DriverName:      testDriver,
		Version:         "v1.2.3",
		NodeName:        "node-1",
		Endpoint:        "unix://" + s.path,
		RegistrationDir: t.TempDir(),
		Publisher:       s.publisher,
		Observe:         func(method, code string, _ time.Duration) { s.observed <- method + " " + code },
		DrainTimeout:    time.Minute,
	}
	if change != nil {
		change(&opts)
	}
	s.registrationPath = filepath.Join(opts.RegistrationDir, testDriver+"-reg.sock")
	s.Server = must.Get(New(opts))(t)
	return s
}

// serve returns a server that serves until the test ends.
func serve(t *testing.T, change func(*Options)) *testServer {
	t.Helper()
	s := newServer(t, change)
	s.begin()
	t.Cleanup(func() {
		must.Do(t, s.stop())
	})
	sockets := []string{s.path}
	if s.opts.RegistrationDir != "" {
		sockets = append(sockets, s.registrationPath)
	}
	for _, socket := range sockets {
		await(s.logs, "Serving", socket)
	}
	conn := s.dial(s.path)
	s.node, s.identity = csi.NewNodeClient(conn), csi.NewIdentityClient(conn)
	s.registrar = registration.NewRegistrationClient(s.dial(s.registrationPath))
	return s
}

// begin starts the server.
func (s *testServer) begin() {
	ctx, cancel := context.WithCancel(klog.NewContext(s.Context(), s.logger))
	s.cancel = cancel
	go func() {
		s.ended <- s.Serve(ctx)
		close(s.ended)
	}()
}

// stop stops the server and returns its error.
func (s *testServer) stop() error {
	s.cancel()
	return <-s.ended
}

func (s *testServer) dial(path string) *grpc.ClientConn {
	s.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(s.searchAnswer))
	must.Do(s, err)
	s.Cleanup(func() { conn.Close() })
	return conn
}

// searchAnswer fails the test if an answer holds a value.
func (s *testServer) searchAnswer(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	if leaked := leak.Check("the answer to "+method, fmt.Sprint(reply, err)); leaked != nil {
		s.Error(leaked)
	}
	return err
}

// publishRequestOf returns a request as the kubelet sends it.
func publishRequestOf(change func(*csi.NodePublishVolumeRequest)) *csi.NodePublishVolumeRequest {
	req := &csi.NodePublishVolumeRequest{
		VolumeId:   testID,
		TargetPath: testTarget,
		Readonly:   true,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/pod.name":            "pod-1",
			"csi.storage.k8s.io/pod.namespace":       "shop",
			"csi.storage.k8s.io/pod.uid":             "uid-1",
			"csi.storage.k8s.io/serviceAccount.name": "default",
			"csi.storage.k8s.io/ephemeral":           "true",
			"configMap":                              "app",
		},
	}
	if change != nil {
		change(req)
	}
	return req
}

// wantStatus fails the test unless err is a status of this code and text.
func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if got := status.Convert(err); got.Code() != code || got.Message() != text {
		t.Errorf("got  %s: %s\nwant %s: %s", got.Code(), got.Message(), code, text)
	}
}

// await returns when the log has a line that contains all parts.
func await(log *leak.Log, parts ...string) {
	for ; len(log.With(parts...)) == 0; <-time.After(time.Millisecond) {
	}
}
