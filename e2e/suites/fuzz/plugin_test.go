package fuzz

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/binding"
	csiserver "github.com/refvol/refvol/pkg/csi"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/publisher"
)

// plugin is what the plugin's program is made of, but for the API server. Its goroutines end
// with stop.
type plugin struct {
	node    csi.NodeClient
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	served  chan error
	running sync.WaitGroup
}

// startPlugin starts a plugin on sockets below top. It logs nothing.
func startPlugin(tb testing.TB, top, kubelet string) *plugin {
	tb.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	p := &plugin{cancel: cancel, served: make(chan error, 1)}
	mounter, err := mount.New(ctx, mount.Options{Driver: driver, KubeletDir: kubelet})
	if err != nil {
		tb.Fatal(err)
	}
	server := &objects{}
	published, err := publisher.New(publisher.Options{
		Options: binding.Options{
			Objects: server, Pods: server, KubeletDir: kubelet, Driver: driver, ResyncInterval: time.Hour,
			Rights: binding.Rights{CrossNamespace: true, Reviews: &access.Reviews{Ask: server.Ask, Verbs: []string{"get"}}},
		},
		Mounts:          publisher.NewMounts(mounter),
		AttributePrefix: mounter.AttributePrefix(),
		NodeName:        "node",
		MaxVolumeSize:   256 << 10,
		MaxTotalSize:    4 << 20,
	})
	if err == nil {
		err = published.Restore(ctx)
	}
	if err != nil {
		tb.Fatal(err)
	}
	p.running.Go(func() { published.Run(ctx) })
	serving, err := csiserver.New(csiserver.Options{
		DriverName: driver, Version: "v0.0.0", NodeName: "node",
		Endpoint: "unix://" + top + "/csi.sock", RegistrationDir: kubelet + "/plugins_registry",
		Publisher: published, DrainTimeout: time.Minute,
	})
	if err != nil {
		tb.Fatal(err)
	}
	go func() { p.served <- serving.Serve(ctx) }()
	// The socket may not be there yet.
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: time.Minute}
	dial := func(socket string) *grpc.ClientConn {
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithConnectParams(soon))
		if err != nil {
			tb.Fatal(err)
		}
		return conn
	}
	p.conn = dial(top + "/csi.sock")
	p.node = csi.NewNodeClient(p.conn)
	// The registration socket is the last that a plugin makes. From its answer on, nothing appears that no call has made.
	registrar := dial(kubelet + "/plugins_registry/" + driver + "-reg.sock")
	asked, done := callContext()
	defer done()
	_, err = registration.NewRegistrationClient(registrar).GetInfo(asked, &registration.InfoRequest{})
	if err := errors.Join(err, registrar.Close()); err != nil {
		tb.Fatal(err)
	}
	return p
}

// stop ends everything.
func (p *plugin) stop() error {
	err := p.conn.Close()
	p.cancel()
	err = errors.Join(err, <-p.served)
	p.running.Wait()
	if err != nil {
		return fmt.Errorf("stop the plugin: %w", err)
	}
	return nil
}
