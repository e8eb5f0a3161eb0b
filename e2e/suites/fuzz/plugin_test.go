package fuzz

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/access"
	server "github.com/refvol/refvol/pkg/csi"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/publisher"
)

// plugin is what the plugin's program is made of, but for the API server. Its goroutines end
// with stop.
type plugin struct {
	objects *objects
	opts    publisher.Options
	current currentPublisher
	node    csi.NodeClient
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	served  chan error

	// halt ends the publisher, and running is closed then.
	halt    context.CancelFunc
	running sync.WaitGroup
}

// startPlugin starts a plugin on sockets below top. It logs nothing.
func startPlugin(tb testing.TB, top, kubelet string) *plugin {
	tb.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	p := &plugin{objects: &objects{}, cancel: cancel, served: make(chan error, 1)}
	mounter, err := mount.New(ctx, mount.Options{Driver: driver, KubeletDir: kubelet})
	if err != nil {
		tb.Fatal(err)
	}
	p.opts = publisher.Options{
		Objects: p.objects, Mounts: publisher.NewMounts(mounter), AttributePrefix: mounter.AttributePrefix(),
		Pods: p.objects, Reviews: &access.Reviews{Ask: p.objects.Ask, Verbs: []string{"get"}}, CrossNamespace: true,
		NodeName: "node", Driver: driver, KubeletDir: kubelet,
		ResyncInterval: time.Hour, MaxVolumeSize: 256 << 10, MaxTotalSize: 4 << 20,
	}
	if err := p.begin(ctx); err != nil {
		tb.Fatal(err)
	}
	serving, err := server.New(server.Options{
		DriverName: driver, Version: "v0.0.0", NodeName: "node",
		Endpoint: "unix://" + top + "/csi.sock", RegistrationDir: kubelet + "/plugins_registry",
		Publisher: &p.current, DrainTimeout: time.Minute,
	})
	if err != nil {
		tb.Fatal(err)
	}
	go func() { p.served <- serving.Serve(ctx) }()
	// The socket may not be there yet.
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: time.Minute}
	if p.conn, err = grpc.NewClient("unix://"+top+"/csi.sock", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithConnectParams(soon)); err != nil {
		tb.Fatal(err)
	}
	p.node = csi.NewNodeClient(p.conn)
	return p
}

// begin starts a publisher, as a new process does: what it knows it reads from the mounts.
func (p *plugin) begin(ctx context.Context) error {
	next, err := publisher.New(p.opts)
	if err != nil {
		return err
	}
	ctx, p.halt = context.WithCancel(ctx)
	if err := next.Restore(ctx); err != nil {
		return err
	}
	p.current.Store(next)
	p.running.Go(func() { next.Run(ctx) })
	return nil
}

// end ends the publisher, and leaves its mounts.
func (p *plugin) end() {
	p.halt()
	p.running.Wait()
}

// stop ends everything.
func (p *plugin) stop() error {
	err := p.conn.Close()
	p.cancel()
	err = errors.Join(err, <-p.served)
	p.end()
	if err != nil {
		return fmt.Errorf("stop the plugin: %w", err)
	}
	return nil
}

// currentPublisher passes calls to the publisher that runs.
type currentPublisher struct {
	atomic.Pointer[publisher.Publisher]
}

func (c *currentPublisher) Publish(ctx context.Context, request publisher.Request) error {
	return c.Load().Publish(ctx, request)
}

func (c *currentPublisher) Unpublish(ctx context.Context, volumeID, target string) error {
	return c.Load().Unpublish(ctx, volumeID, target)
}

func (c *currentPublisher) Stats(ctx context.Context, volumeID, target string) (publisher.Usage, error) {
	return c.Load().Stats(ctx, volumeID, target)
}
