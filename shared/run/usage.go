package run

// usage is what `cloudfnd --help` prints.
const usage = `cloudfnd serves the function FUNCTION_TARGET, or without it all functions. Its settings are variables of
the environment.

  cloudfnd                   serve
  cloudfnd check             test every setting, and say what would be right
  cloudfnd migrate           update the database schema
  cloudfnd gateway           serve one base URL for functions that run one by one
  cloudfnd projects          list what projects have left that are not served any more
  cloudfnd projects end ID   end what one of them has left; its servers stay, unless --with-servers follows, which does
                             to servers on reserved hosts what on_end of their lease says
  cloudfnd keys              print key pairs
  cloudfnd keys status       count stored secrets by their keys
  cloudfnd trustee           print the user id that trusts are made to
  cloudfnd describe          print what the functions declare, as JSON
  cloudfnd version           print the version
`
