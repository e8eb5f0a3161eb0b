package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/csi"
	"github.com/refvol/refvol/pkg/events"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/podenv"
	"github.com/refvol/refvol/pkg/publisher"
)

// drainTimeout bounds how long calls under way may take at a stop; it must be less
// than the pod's termination grace period.
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
			if err := logsapi.ValidateAndApply(opts.logging, nil); err != nil {
				return fmt.Errorf("logging flags: %w", err)
			}
			defer klog.Flush()
			return serve(cmd.Context(), opts)
		},
	}
	opts.addFlags(cmd)
	return cmd
}

// serve wires the packages and runs them. At the end of ctx it first ends the
// publishes that wait and drains the calls under way, and stops what they stand on
// after that.
func serve(ctx context.Context, opts *serveOptions) (err error) {
	logger := klog.FromContext(ctx)
	logger.Info("Starting", "version", version.Get().GitVersion, "driver", opts.driverName, "node", opts.nodeName)
	client, err := newClient(opts.kubeconfig)
	if err != nil {
		return err
	}
	recorder, err := events.New(ctx, events.Options{Client: client, Component: opts.driverName, Node: opts.nodeName})
	if err != nil {
		return err
	}
	defer recorder.Shutdown()
	objects, volumes, err := newPublisher(ctx, opts, client, recorder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, volumes.Close()) }()
	server, err := csi.New(csi.Options{
		DriverName:        opts.driverName,
		Version:           version.Get().GitVersion,
		NodeName:          opts.nodeName,
		Endpoint:          opts.endpoint,
		RegistrationDir:   opts.registrationDir,
		KubeletSocketPath: opts.kubeletSocketPath,
		Publisher:         volumes,
		DrainTimeout:      drainTimeout,
	})
	if err != nil {
		return err
	}

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	// Before the restore, which has it start reflectors: only its Run ends them.
	var managerErr error
	running.Go(func() { managerErr = objects.Run(background) })
	if err := volumes.Restore(background); err != nil {
		return fmt.Errorf("restore published volumes: %w", err)
	}
	running.Go(func() { volumes.Run(background) })

	serving, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	defer context.AfterFunc(serving, volumes.StopWaiting)()
	if opts.httpAddress != "" {
		probes, startErr := startProbes(opts.httpAddress, server.Ready, failed)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, probes.stop()) }()
		logger.Info("Serving probes", "address", probes.address)
	}
	err = server.Serve(serving)
	if cause := context.Cause(serving); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	stop()
	running.Wait()
	logger.Info("Stopped")
	return errors.Join(err, managerErr)
}

// newPublisher makes the parts below the CSI server.
func newPublisher(ctx context.Context, opts *serveOptions, client kubernetes.Interface, recorder *events.Recorder) (*manager.Manager, *publisher.Publisher, error) {
	maxVolume, maxTotal, err := opts.sizes()
	if err != nil {
		return nil, nil, err
	}
	objects, err := manager.New(manager.Options{
		Client:         client,
		ResyncInterval: opts.resyncInterval,
		Strategy:       manager.Strategy(opts.changeDetection),
		NodeName:       opts.nodeName,
	})
	if err != nil {
		return nil, nil, err
	}
	mounter, err := mount.New(ctx, mount.Options{
		Driver:         opts.driverName,
		KubeletDir:     opts.kubeletDir,
		SELinuxContext: opts.selinuxContext,
	})
	if err != nil {
		return nil, nil, err
	}
	access, err := newAccess(opts, client)
	if err != nil {
		return nil, nil, err
	}
	volumes, err := publisher.New(publisher.Options{
		Objects:        objects,
		Mounts:         publisher.NewMounts(mounter),
		Events:         recorder,
		Pods:           podenv.NewReader(client),
		Access:         access,
		NodeName:       opts.nodeName,
		StateDir:       opts.stateDir,
		KubeletDir:     opts.kubeletDir,
		ResyncInterval: opts.resyncInterval,
		PublishWait:    opts.publishWait,
		MaxVolumeSize:  maxVolume,
		MaxTotalSize:   maxTotal,
	})
	return objects, volumes, err
}

// newAccess returns who answers whether a pod may have an object of another namespace, nil
// for nobody. An answer serves all volumes of one service account that are reviewed at
// about the same time; it must not serve one volume at two of its resyncs.
func newAccess(opts *serveOptions, client kubernetes.Interface) (publisher.Access, error) {
	if !opts.crossNamespace {
		return nil, nil
	}
	return authz.New(authz.Options{
		Client: client.AuthorizationV1().SubjectAccessReviews(),
		MaxAge: opts.resyncInterval / 2,
	})
}

// loadConfig reads a kubeconfig, or where none is named, the pod's service account.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// newClient returns a client of the API server. It has no rate limit of its own:
// the manager bounds and paces its requests itself, and a shared limit would let one
// pod's many objects hold up the other pods' first publish.
func newClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := loadConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("configure the client of the API server: %w", err)
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	rest.AddUserAgent(config, "refvol-plugin/"+version.Get().GitVersion)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of the API server: %w", err)
	}
	return client, nil
}
