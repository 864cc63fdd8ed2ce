package openstack

import (
	"context"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/remoteconsoles"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ConsoleLog returns about the last lines of a server's console log: some drivers return more. It is NotFound for a
// server without a console, and a Conflict before the server has a host.
func (s *Session) ConsoleLog(ctx context.Context, id string, lines int) (string, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return "", err
	}
	opts := servers.ShowConsoleOutputOpts{Length: lines + 1} // Nova counts the text after the last newline
	output, err := servers.ShowConsoleOutput(ctx, nova, id, opts).Extract()
	return output, classify("nova", err)
}

// consoleProtocols are Nova's protocols of the types of remote consoles.
var consoleProtocols = map[domain.ConsoleType]remoteconsoles.ConsoleProtocol{
	domain.ConsoleNoVNC: remoteconsoles.ConsoleProtocolVNC, domain.ConsoleSPICE: remoteconsoles.ConsoleProtocolSPICE,
	domain.ConsoleRDP: remoteconsoles.ConsoleProtocolRDP, domain.ConsoleSerial: remoteconsoles.ConsoleProtocolSerial,
	domain.ConsoleWebMKS: remoteconsoles.ConsoleProtocolMKS,
}

// RemoteConsole has Nova make a URL of a server's console, with a token that expires. It is Invalid when the cloud does
// not offer the type, and a Conflict before the server has a host.
func (s *Session) RemoteConsole(ctx context.Context, id string, kind domain.ConsoleType) (domain.Secret, error) {
	version := computeConsoles
	if kind == domain.ConsoleWebMKS {
		version = computeConsolesMKS
	}
	nova, err := s.compute(ctx, version)
	if err != nil {
		return "", err
	}
	console, err := remoteconsoles.Create(ctx, nova, id, remoteconsoles.CreateOpts{
		Protocol: consoleProtocols[kind], Type: remoteconsoles.ConsoleType(kind),
	}).Extract()
	switch {
	case err != nil:
		return "", classify("nova", err)
	case console.URL == "":
		return "", apperr.New(apperr.BadGateway, "nova made a console without giving its URL")
	}
	return domain.Secret(console.URL), nil
}
