package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/features"
	clientmetrics "k8s.io/client-go/tools/metrics"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/csi"
	"github.com/refvol/refvol/pkg/events"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/node"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/taint"
)

// drainTimeout limits running calls at a stop. It must be less than the pod's termination grace period.
const drainTimeout = 20 * time.Second

func newServeCommand() *cobra.Command {
	opts := newServeOptions()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the CSI node service until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return err
			}
			// client-go logs its feature gates when the first one is read. It is read here, before -v takes effect.
			features.FeatureGates().Enabled(features.WatchListClient)
			if err := logsapi.ValidateAndApply(opts.logging, nil); err != nil {
				return fmt.Errorf("logging flags: %w", err)
			}
			defer klog.Flush()
			if err := serve(cmd.Context(), opts); err != nil {
				return &serveError{err}
			}
			return nil
		},
	}
	opts.addFlags(cmd)
	return cmd
}

// gcPercent starts garbage collection when there is half as much garbage as live memory, unless GOGC is set. Live memory lasts as long as
// the volumes, and little garbage is made while nothing changes.
const gcPercent = 50

// serve wires the packages and runs them. At the end of ctx it ends the waiting publishes and drains the running calls. Then it stops the
// packages below.
func serve(ctx context.Context, opts *serveOptions) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	logger := klog.FromContext(ctx)
	logger.Info("Starting", "version", version.Get().GitVersion, "driver", opts.driverName, "node", opts.nodeName)
	config, err := loadConfig(opts.kubeconfig)
	if err != nil {
		return err
	}
	m := metrics.New(version.Get())
	clientmetrics.Register(m.Client()) // client-go has only one place per process for this
	logLimit := loglimit.New(logger, m.LogLineLeftOut)
	defer logLimit.Close() // after everything that logs
	paced := requests.New()
	if err := m.ShowRequests(paced.State); err != nil {
		return err
	}
	api := connections{config, paced}
	client, err := api.Own()
	if err != nil {
		return err
	}
	recorder := events.New(ctx, func(namespace string) events.Events { return client.Events(namespace) }, opts.driverName, opts.nodeName)
	defer recorder.Shutdown()
	mounter, err := mount.New(ctx, mount.Options{Driver: opts.driverName, KubeletDir: opts.kubeletDir, SELinuxContext: opts.selinuxContext})
	if err != nil {
		return err
	}
	notShared := sync.OnceValue(func() error { return notShared(ctx, mounter.CheckPropagation()) })
	settings, err := opts.settings()
	if err != nil {
		return err
	}
	system := node.System{
		Client: client, Clients: api, Requests: paced, Mounts: publisher.NewMounts(mounter), AttributePrefix: mounter.AttributePrefix(),
		NotShared: notShared, Events: recorder, Metrics: m, LogLimit: logLimit,
	}
	var below *node.Node
	var opens *receipts.Group
	if opts.openReceipts {
		if opens = newOpens(ctx, mounter, func() { below.Volumes.OpensLost() }); opens != nil {
			system.Opens = opens
		}
	}
	if below, err = node.New(settings, system); err != nil {
		return err
	}
	var registered func(bool)
	var startupTaint *taint.Remover
	if opts.startupTaint != "" {
		if startupTaint, err = taint.NewRemover(client.Nodes(), opts.nodeName, opts.startupTaint); err != nil {
			return fmt.Errorf("--startup-taint: %w", err)
		}
		registered = startupTaint.SetRegistered
	}
	server, err := csi.New(csi.Options{
		DriverName:        opts.driverName,
		Version:           version.Get().GitVersion,
		NodeName:          opts.nodeName,
		Endpoint:          opts.endpoint,
		RegistrationDir:   opts.registrationDir,
		KubeletSocketPath: opts.kubeletSocketPath,
		Publisher:         below.Volumes,
		Observe:           m.ObserveCall,
		LogLimit:          logLimit,
		Registered:        registered,
		DrainTimeout:      drainTimeout,
	})
	if err != nil {
		return err
	}

	unlock, err := csi.AcquireLock(ctx, opts.endpoint)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // it was still waiting for the last process to end
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	if opens != nil {
		defer func() { err = errors.Join(err, opens.Close()) }()
		running.Go(func() { opens.Run(background) })
	}
	defer running.Wait()
	defer stop()
	if err := below.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, below.Stop()) }()
	running.Go(func() {
		below.Rights.Await(background)
		// Pods must not come to a node before the plugin can read there, or where they could not start.
		if startupTaint != nil && notShared() == nil {
			startupTaint.Run(background)
		}
	})

	serving, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	defer context.AfterFunc(serving, below.Volumes.StopWaiting)()
	ready := readiness(notShared, below.Rights.Ready, server.IsReady)
	for _, c := range ready {
		if err := m.ShowReadiness(c.name, c.err); err != nil {
			return err
		}
	}
	stopHTTP, err := startHTTPServers(ctx, opts, monitoring(server.Probe, ready, m.Handler()), statusHandler(opts, below, server, ready), failed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopHTTP()) }()
	err = server.Serve(serving)
	if cause := context.Cause(serving); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	err = errors.Join(err, below.Stop())
	logger.Info("Stopped")
	return err
}
