package csi

import (
	"context"
	"sync/atomic"

	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// supportedVersion is the version of the CSI API that is reported to the kubelet. The kubelet only checks the major version.
const supportedVersion = "1.0.0"

// registrationServer answers the kubelet's plugin watcher, so that no separate registrar is needed.
type registrationServer struct {
	registration.UnimplementedRegistrationServer
	driverName string
	// socket is the path of the CSI socket as the kubelet sees it.
	socket     string
	registered atomic.Bool
	// refusal is the kubelet's last refusal, a string.
	refusal atomic.Value
	// onRegistered is called with the kubelet's answer.
	onRegistered func(registered bool)
}

// GetInfo returns the path of the CSI socket to the kubelet.
func (s *registrationServer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              s.driverName,
		Endpoint:          s.socket,
		SupportedVersions: []string{supportedVersion},
	}, nil
}

// NotifyRegistrationStatus is called by the kubelet after it registered the driver or refused to. The kubelet retries by itself after a
// failure, so the failure is only logged and shown by readiness.
func (s *registrationServer) NotifyRegistrationStatus(ctx context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	s.registered.Store(status.GetPluginRegistered())
	logger := klog.FromContext(ctx)
	if status.GetPluginRegistered() {
		s.refusal.Store("")
		logger.Info("Kubelet registered the driver", "driver", s.driverName)
	} else if reason := status.GetError(); s.refusal.Swap(reason) != reason {
		logger.Error(nil, "Kubelet refused to register the driver", "driver", s.driverName, "reason", reason)
	}
	s.onRegistered(status.GetPluginRegistered())
	return &registration.RegistrationStatusResponse{}, nil
}
